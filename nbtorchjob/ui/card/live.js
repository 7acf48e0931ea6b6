// Runs with each drawing of a live card, in the element that holds it and outlives the drawings.
//
// What the reader unfolded, scrolled, searched or focused is put back after each drawing. Where a
// Jupyter Server with our extension serves the page, buttons take the place of the sentence that says
// what to do without any. They reach the server and not the kernel, which the cell keeps busy.
(host, given) => {
  if (host.torchjob) return;
  host.torchjob = true;
  const STALE_MS = 5000; // a live card is drawn each second
  const page = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "null");
  const url = `${page?.baseUrl}nbtorchjob/api/jobs/${encodeURIComponent(given.job)}`;
  const logs = {}; // by what stands first in its summary: whether it is open, how far it is scrolled
  const whole = new WeakMap(); // of a log that is searched: all its lines, whether it was open
  let served = false, drawings = 0, drawn = 0, focused = null;

  const send = async (method, to) => {
    const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? "";
    const headers = {"X-XSRFToken": xsrf, ...(page.token && {Authorization: `token ${page.token}`})};
    const answer = await fetch(to, {method, headers, cache: "no-store"});
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.message || `the server answers ${answer.status}`);
  };

  // The bar outlives the drawings as well.
  const make = (tag, properties, style) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.style.cssText = `font:inherit;color:inherit;margin:2px 8px 2px 0;${style}`;
    return made;
  };
  const CONTROL = "background:transparent;border:1px solid currentColor;border-radius:3px;padding:1px 8px";
  const link = (textContent, href) =>
    make("a", {textContent, href, target: "_blank", rel: "noopener"}, "text-decoration:underline");
  const said = make("span", {role: "status"}, "");
  const since = make("span", {}, ""); // what became of a job that this page gets no drawings of
  const button = (textContent, act) => {
    const made = make("button", {type: "button", textContent}, `${CONTROL};cursor:pointer`);
    made.onclick = async () => {
      made.disabled = true;
      said.textContent = await act().catch(error => `${textContent}: ${error.message}`);
      made.disabled = false;
    };
    return made;
  };
  const waitedFor = () => drawings > 0 && performance.now() - drawn < STALE_MS;
  // What the table of verbs offers here, each while the job's record has one of the values in each field.
  const offered = given.buttons.map(({verb, label, when, asks, done}) => ({
    when,
    control: button(label, async () => {
      if (asks && !confirm(`${label} ${given.name}?`)) return "";
      const answer = await send("POST", `${url}/${verb}`);
      const made = answer.status === 204 ? {} : await answer.json();
      const text = done.replace(/{(\w+)}/g, (_, field) => made[field]);
      return made.name ? `${text}: %torchjob attach ${made.name}` : text;
    })
  }));
  const offer = job => offered.forEach(({when, control}) => {
    control.hidden = !Object.entries(when).every(([field, values]) => values.includes(job[field]));
  });
  offer({terminal: false}); // a live drawing is of one that runs
  // An interrupt is for whatever the kernel runs: that is the waiting cell only while drawings come.
  const detach = button("Detach", async () => {
    if (!waitedFor()) return "no cell waits for it any more";
    await send("POST", `${page.baseUrl}api/kernels/${given.kernel}/interrupt`);
    return "the cell stops waiting, the job goes on";
  });
  const copy = button("Copy manifest", async () => {
    const manifests = await (await send("GET", `${url}/manifests`)).text();
    await navigator.clipboard.writeText(manifests);
    return "copied";
  });
  const search = make("input", {type: "search", placeholder: "search in logs"}, CONTROL);
  search.setAttribute("aria-label", "search in logs");
  const bar = make("div", {}, "");
  const controls = offered.map(({control}) => control);
  bar.append(...controls, detach, link("Describe", `${url}/describe`), copy, search, since, said);
  copy.hidden = given.job.startsWith("local:"); // there is none

  const name = log => log.firstElementChild.textContent.split(" · ")[0];
  const filter = (log, pre) => {
    const words = search.value.toLowerCase();
    if (!words && !whole.has(pre)) return;
    if (!whole.has(pre)) whole.set(pre, {html: pre.innerHTML, open: log.open});
    const {html, open} = whole.get(pre);
    pre.innerHTML = html;
    const texts = pre.textContent.split("\n");
    const found = html.split("\n").filter((_, n) => texts[n].toLowerCase().includes(words));
    pre.innerHTML = found.join("\n");
    log.open = words ? found.length > 0 : logs[name(log)].open ?? open;
  };
  const restore = log => {
    const [summary, box] = log.children;
    const mine = logs[name(log)] ??= {};
    const rank = /^rank (\d+)$/.exec(name(log))?.[1];
    log.open = mine.open ?? log.open;
    if (rank) filter(log, box.querySelector("pre"));
    if (rank && served && log.children.length === 2) box.after(link("full log", `${url}/logs/${rank}`));
    box.scrollTop = mine.top ?? 0;
    box.onscroll = () => { mine.top = box.scrollTop; };
    // A drawing between press and release would lose the click.
    summary.onpointerdown = summary.onclick = () => { mine.open = !log.open; };
  };

  // Where the focus was: a part of the bar, or the place in a log that every drawing has anew.
  const spot = element => {
    const log = element.closest("details");
    return log ? `${name(log)} ${[...log.children].indexOf(element)}` : element;
  };
  host.addEventListener("focusin", event => { focused = spot(event.target); });
  host.addEventListener("focusout", event => queueMicrotask(() => {
    // What a drawing removed was not left by the reader.
    if (event.target.isConnected && document.activeElement !== event.target) focused = null;
  }));
  const refocus = () => {
    if (!focused || host.contains(document.activeElement)) return;
    const parts = [...host.querySelectorAll("details > *, button, input, a")];
    parts.find(part => spot(part) === focused)?.focus({preventScroll: true});
  };

  // A drawing between press and release takes what was pressed away for a moment: no click follows then.
  host.addEventListener("pointerdown", down => {
    const pressed = down.target.closest("a, button"), before = drawings;
    if (pressed) document.addEventListener("pointerup", up => {
      const there = document.elementFromPoint(up.clientX, up.clientY)?.closest("a, button");
      if (drawings > before && there && spot(there) === spot(pressed)) there.click();
    }, {once: true});
  });

  const draw = () => {
    detach.hidden = !given.kernel || !waitedFor();
    const line = host.querySelector(".nbtorchjob-drawn");
    if (line && served) {
      line.querySelector("span")?.remove();
      line.after(bar);
    }
    host.querySelectorAll("details").forEach(restore);
    refocus();
  };
  search.oninput = draw;
  new MutationObserver(() => {
    drawings += 1;
    drawn = performance.now();
    draw();
  }).observe(host, {childList: true});
  draw();

  // After a reload the page has a drawing that nobody updates: the server knows how the job stands.
  const look = async () => {
    const job = await (await send("GET", url)).json();
    since.textContent = waitedFor() ? "" : `now ${job.status.toLowerCase()}, see %torchjob status ${given.name}`;
    offer(job);
    draw();
  };
  const begin = async () => {
    await send("GET", url); // other servers have no such place
    served = true;
    draw();
    setInterval(() => { if (host.contains(bar)) look().catch(() => {}); }, STALE_MS);
  };
  if (page) begin().catch(() => {});
}
