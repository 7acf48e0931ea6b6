// Runs with each drawing of a live job's card, in the element that holds the drawings and outlives them.
//
// A kernel draws the card while a cell waits. If none does, as after a reload, a restart of the kernel or
// *Detach*, the server draws it if a Jupyter Server with our extension serves the page.
//
// What the reader unfolded, scrolled, searched or focused is restored after each drawing. Buttons, which
// talk to the server, not the kernel, replace the sentence that says what to do without buttons.
//
// Between two looks only the page holds the card, which a closed notebook drops.
(ticking => (host, attributes) => {
  if (host.torchjob) return;
  host.torchjob = true;
  const FIRST_MS = 1500, STALE_MS = 5000; // the kernel of a waiting cell draws every second
  const ENDED_LOOKS = 12;
  const page = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "null");
  const {id, created} = attributes.job;
  const url = `${page?.baseUrl}nbtorchjob/api/jobs/${encodeURIComponent(id)}`;
  // Once this job is deleted, another may have its name: that isn't meant.
  const at = path => `${url}${path}${created === undefined ? "" : `?created=${created}`}`;
  const logs = {}; // by the first part of its summary: whether it is open, how far it is scrolled
  const whole = new WeakMap(); // for a log that is searched: all its lines, whether it was open
  let served = false, drawings = 0, drawn = -STALE_MS, focused = null, aging = 0;

  const send = async (method, to) => {
    const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? "";
    const headers = {"X-XSRFToken": xsrf, ...(page.token && {Authorization: `token ${page.token}`})};
    const answer = await fetch(to, {method, headers, cache: "no-store"});
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => ({}));
    const message = body.message || `the server answers ${answer.status}`;
    const isOurs = Boolean(body.reason); // other servers' errors have none
    const isMissing = answer.status === 404;
    throw Object.assign(new Error(message), {isOurs, isMissing, isDeleted: isOurs && isMissing});
  };

  // The bar outlives the drawings as well.
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
  const link = (textContent, href) => make("a", {textContent, href, target: "_blank", rel: "noopener"});
  const status = make("span", {role: "status"});
  const stale = make("span", {}); // why the server draws nothing
  const button = (textContent, act) => {
    const element = make("button", {type: "button", textContent});
    element.onclick = async () => {
      element.disabled = true;
      status.textContent = await act().catch(error => `${textContent}: ${error.message}`);
      element.disabled = false;
    };
    return element;
  };
  const waitedFor = () =>
    performance.now() - drawn < STALE_MS && host.querySelector(".nbtorchjob-waited-for") !== null;
  // Runs JupyterLab's command, with its dialog, if our extension is there: its style shows the button.
  const commanded = verb => {
    const pressed = make("button", {className: "nbtorchjob-do"});
    pressed.style.display = "none";
    pressed.dataset.commandlinkerCommand = `nbtorchjob:${verb}`;
    pressed.dataset.commandlinkerArgs = JSON.stringify(attributes.job);
    bar.append(pressed);
    const isShown = getComputedStyle(pressed).display !== "none";
    if (isShown) pressed.click();
    pressed.remove();
    return isShown;
  };
  const offered = attributes.buttons.map(({verb, label, asks, done}) => button(label, async () => {
    if (asks && (commanded(verb) || !confirm(`${label} ${attributes.name}?`))) return "";
    await send("POST", at(`/${verb}`));
    return done;
  }));
  // An interrupt hits whatever the kernel runs, which is the waiting cell only while drawings arrive.
  const detach = button("Detach", async () => {
    if (!waitedFor()) return "no cell is waiting for it any more";
    await send("POST", `${page.baseUrl}api/kernels/${attributes.kernel}/interrupt`);
    return "the cell stops waiting; the job keeps running";
  });
  const copy = button("Copy manifest", async () => {
    const manifests = await (await send("GET", at("/manifests"))).text();
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(manifests);
    } else { // a page without TLS
      const box = make("textarea", {value: manifests});
      bar.append(box);
      box.select();
      const isCopied = document.execCommand("copy");
      box.remove();
      if (!isCopied) throw new Error("the browser doesn't allow it");
    }
    return "copied";
  });
  const search = make("input", {type: "search", placeholder: "search in logs"});
  search.setAttribute("aria-label", "search in logs");
  const bar = make("span", {className: "nbt-more"});
  bar.style.cssText = "display:flex;flex-wrap:wrap;gap:4px";
  bar.append(...offered, detach, link("Describe", at("/describe")), copy, search, stale, status);
  copy.hidden = id.startsWith("local:"); // it has none

  const name = log => log.firstElementChild.textContent.split(" · ")[0];
  const filter = (log, pre) => {
    const words = search.value.toLowerCase();
    if (!words && !whole.has(pre)) return;
    if (!whole.has(pre)) whole.set(pre, {html: pre.innerHTML, open: log.open});
    const {html, open} = whole.get(pre);
    pre.innerHTML = html;
    const texts = pre.textContent.split("\n");
    const lines = html.split("\n").filter((_, n) => texts[n].toLowerCase().includes(words));
    pre.innerHTML = lines.join("\n");
    log.open = words ? lines.length > 0 : logs[name(log)].open ?? open;
  };
  const restore = log => {
    const [summary, box] = log.children;
    const state = logs[name(log)] ??= {};
    const rank = /^rank (\d+)$/.exec(name(log))?.[1];
    log.open = state.open ?? log.open;
    // The last drawing of a job that succeeded folds everything: what is being read stays open.
    if (state.open) log.parentElement.closest("details")?.setAttribute("open", "");
    if (rank) filter(log, box.querySelector("pre"));
    if (rank && served && log.children.length === 2) box.after(link("full log", at(`/logs/${rank}`)));
    box.scrollTop = state.top ?? 0;
    box.onscroll = () => { state.top = box.scrollTop; };
    // A drawing between press and release would lose the click.
    summary.onpointerdown = summary.onclick = () => { state.open = !log.open; };
  };

  // Where the focus is: a part of the bar, or a button or place in a log, which each drawing replaces.
  const spot = element => {
    if (element.matches(".nbtorchjob-do")) return `do ${element.title}`;
    const log = element.closest("details");
    if (!log) return element;
    const at = [...log.children].indexOf(element);
    return `${name(log)} ${at < 0 ? element.href : at}`;  // there may be links in its lines
  };
  // A click on a rank's tile opens its log.
  host.addEventListener("click", event => {
    const rank = /^rank (\d+) /.exec(event.target.closest(".nbt-ranks > span")?.title ?? "")?.[1];
    const log = rank && [...host.querySelectorAll("details")].find(log => name(log) === `rank ${rank}`);
    if (!log) return;
    log.open = logs[name(log)].open = true;
    log.scrollIntoView({block: "nearest"});
  });
  host.addEventListener("focusin", event => { focused = spot(event.target); });
  host.addEventListener("focusout", event => queueMicrotask(() => {
    // The reader didn't leave an element that a drawing removed.
    if (event.target.isConnected && document.activeElement !== event.target) focused = null;
  }));
  const refocus = () => {
    if (!focused || host.contains(document.activeElement)) return;
    const parts = [...host.querySelectorAll("details > *, button, input, a")];
    parts.find(part => spot(part) === focused)?.focus({preventScroll: true});
  };

  // A drawing between press and release replaces what was pressed: the browser then sends no click.
  host.addEventListener("pointerdown", down => {
    const pressed = down.target.closest("a, button"), before = drawings;
    if (pressed) document.addEventListener("pointerup", up => {
      const target = document.elementFromPoint(up.clientX, up.clientY)?.closest("a, button");
      if (drawings > before && target && spot(target) === spot(pressed)) target.click();
    }, {once: true});
  });

  const draw = () => {
    search.hidden = !host.querySelector(".nbt-log");
    detach.hidden = !attributes.kernel || !waitedFor();
    const line = host.querySelector(".nbtorchjob-drawn");
    if (line && served) {
      line.querySelector("span")?.remove();
      host.querySelector(".nbt-tools").append(bar);
    }
    // A card that is drawn every few seconds needn't say when; once the drawings stop, it does.
    if (line) {
      line.hidden = (waitedFor() || served) && !line.querySelector("span");
      clearTimeout(aging);
      aging = setTimeout(() => { line.hidden = false; }, 3 * STALE_MS);
    }
    host.querySelectorAll("details").forEach(restore);
    refocus();
  };
  search.oninput = draw;
  const afterDrawing = () => {
    drawings += 1;
    stale.textContent = "";
    draw();
  };
  const observer = new MutationObserver(() => {
    drawn = performance.now();
    afterDrawing();
  });
  observer.observe(host, {childList: true});
  draw();

  const look = async () => {
    if (!host.isConnected || document.hidden || waitedFor()) return;
    // Without a bar the job's end is drawn: by the kernel, with the value, which the server doesn't read.
    if (!host.contains(bar)) return void await send("GET", at(""));
    const before = drawings, drawing = document.createElement("div");
    drawing.innerHTML = await (await send("GET", at("/card"))).text();
    if (drawings > before || waitedFor()) return;
    host.querySelector(".nbtorchjob").replaceWith(drawing.firstElementChild);
    observer.takeRecords(); // `drawn` is when the kernel last drew
    afterDrawing();
  };
  // A deleted job's card keeps what it showed last, but no longer claims that it holds.
  const markDeleted = () => {
    const phase = host.querySelector(".nbt-state");
    const line = host.querySelector(".nbtorchjob-drawn") ??
      phase.parentElement.insertAdjacentElement("afterend", make("div", {}, ""));
    phase.textContent = "Deleted";
    host.querySelector(".nbtorchjob").className = "nbtorchjob nbt-quiet";
    line.hidden = false;
    line.textContent = "This job was deleted; the card shows what was last known about it.";
    line.setAttribute("role", "status");
    host.querySelectorAll("details > a, .nbtorchjob-do").forEach(offer => offer.remove());
    bar.remove();
  };
  // An ended job's card has no such line. A job deleted while it runs ends first, and is gone seconds later.
  let left = ENDED_LOOKS;
  const wait = () => host.querySelector(".nbtorchjob-drawn") || left-- > 0 ? STALE_MS : 0;
  const begin = async () => {
    const error = await send("GET", at("")).then(() => null, error => error);
    if (error && !error.isOurs) {
      // A server without our extension has no such route. Networks, proxies and logins may recover.
      return error.isMissing ? 0 : wait();
    }
    served = true;
    draw();
    return FIRST_MS;
  };
  host.torchjobLook = async () => { // returns the milliseconds until the next look; 0: there is none
    if (!served) return begin();
    const before = drawings;
    const error = await look().then(() => null, error => error);
    if (error && drawings === before) stale.textContent = error.message;
    if (!error?.isDeleted) return wait();
    markDeleted();
    return 0;
  };
  if (page) ticking(new WeakRef(host));
})(card => {
  const tick = async () => {
    const wait = await card.deref()?.torchjobLook();
    if (wait) setTimeout(tick, wait);
  };
  tick();
})
