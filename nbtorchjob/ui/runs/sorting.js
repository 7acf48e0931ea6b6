// Makes a click on a column's head sort a group's table, in a page and in the saved file. Runs with each
// drawing, in the element that holds the drawings and outlives them: the chosen order stays.
host => {
  const table = host.querySelector(".nbtorchjob-sorts"), [body] = table.tBodies;
  const heads = [...table.tHead.rows[0].cells];
  // The row below a run that says why it failed moves with it.
  const below = ({nextElementSibling: next}) => (next?.classList.contains("nbtorchjob-why") ? [next] : []);
  const runs = [...body.rows].filter(row => row.cells.length === heads.length).map(row => [row, ...below(row)]);
  const sort = ({at, sign}) => {
    const cellText = ([row]) => row.cells[at].textContent.trim();
    const order = (a, b) => sign * (a - b || a.localeCompare(b));
    const empty = run => cellText(run) === ""; // nothing was reported: last in either direction
    const sorted = [...runs].sort((a, b) => empty(a) - empty(b) || order(cellText(a), cellText(b)));
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
