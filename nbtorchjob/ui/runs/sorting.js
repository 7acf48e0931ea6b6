// Has a click on a head of a group's table sort it, in a page and in the saved file. Runs with each drawing,
// in the element that holds it and outlives the drawings: the order that was chosen stays.
host => {
  const table = host.querySelector(".nbtorchjob-sorts"), [body] = table.tBodies;
  const heads = [...table.tHead.rows[0].cells];
  // What stands below a run, why it failed, goes with it.
  const below = ({nextElementSibling: next}) => (next?.classList.contains("nbtorchjob-why") ? [next] : []);
  const runs = [...body.rows].filter(row => row.cells.length === heads.length).map(row => [row, ...below(row)]);
  const sort = ({at, sign}) => {
    const told = ([row]) => row.cells[at].textContent.trim();
    const order = (a, b) => sign * (a - b || a.localeCompare(b));
    const empty = run => told(run) === ""; // nothing was reported: last, whichever way
    const sorted = [...runs].sort((a, b) => empty(a) - empty(b) || order(told(a), told(b)));
    body.append(...sorted.flat());
    heads.forEach((head, n) => head.ariaSort = n === at ? (sign > 0 ? "ascending" : "descending") : "none");
  };
  heads.forEach((head, at) => {
    const button = Object.assign(document.createElement("button"), {type: "button", textContent: head.textContent});
    button.style.cssText = "all:unset;cursor:pointer;text-decoration:underline dotted;outline:revert";
    button.onclick = () => {
      const {at: before, sign} = host.torchjobOrder ?? {};
      host.torchjobOrder = {at, sign: before === at ? -sign : 1};
      sort(host.torchjobOrder);
    };
    head.replaceChildren(button);
  });
  if (heads[host.torchjobOrder?.at]) sort(host.torchjobOrder);
}
