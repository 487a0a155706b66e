// The live path: a timer requests one small delta, which is drawn here; Dash only transports it.
(function (RS) {
  "use strict";
  const LOST = 6000, GIVE_UP = 6000, IDLE_TICKS = 80, LOOK = 8;
  // Timer ticks (9 s) between polls of a tab with an open socket: longer than most runs' ticks, so that it polls only
  // after notifications. An open socket alone does not prove that the server works, so the loss limit is longer too.
  const QUIET = 12, LOST_PUSHED = 15000;
  const none = () => window.dash_clientside.no_update;
  const since = (then) => performance.now() - then;
  let asked = null, requestedAt = 0, pulledAt = 0, answeredAt = 0, sent = 0, ticks = 0, sentTick = 0, paused = false, clock = null;
  // When the tab was last resumed or shown: a paused or hidden tab sends no requests, which is no loss of connection.
  let awakeAt = 0;
  let looked = false, news = false, waiting = "";

  // The server's clock: a demo's may run apart from the browser's.
  RS.ticks = () => ticks;
  RS.asked = () => (asked ? asked.search : "");
  RS.busy = () => RS.view["pf.busy"] === 1;
  RS.now = () => RS.boot.now + since(answeredAt) / 1000;

  const touch = () => matchMedia("(pointer: coarse)").matches;
  const mounted = (place) => place && place.firstElementChild;
  function ask(path, search) {
    const have = RS.all("[data-place]").filter(mounted).map((place) => place.dataset.place);
    asked = { path, search, have, tz: RS.tz / 1000, touch: touch(), n: (asked ? asked.n : 0) + 1 };
    requestedAt = performance.now();
    return asked;
  }

  // History was rewritten, or a series began: load this range again.
  RS.reload = function () {
    if (asked && RS.boot && asked.n !== RS.boot.page && since(requestedAt) < GIVE_UP) return;
    window.dash_clientside.set_props("view", { data: ask(asked.path, RS.unzoomed(asked.search)) });
  };

  function open(pathname, search) {
    if (asked && asked.search !== search) RS.unzoom();
    RS.showTheme();
    start();
    const path = String(pathname || "").slice(RS.by("app").dataset.base.length);
    if (asked && asked.path !== path) RS.by("app").dataset.page = "loading";
    return ask(path, search || "");
  }

  function start() {
    if (clock) return;
    clock = setInterval(heartbeat, 1000);
    RS.by("live").addEventListener("click", () => {
      paused = !paused;
      wake();
    });
    document.addEventListener("visibilitychange", wake);
    for (const name of ["pointermove", "keydown", "focus"]) window.addEventListener(name, () => (looked = true), { passive: true });
    RS.by("unzoom").addEventListener("click", RS.reset);
    // Runs change while a page is open, so the menu is loaded again when it is opened.
    RS.by("run-menu").addEventListener("toggle", (event) => event.target.open && !paused && RS.boot && RS.reload());
  }

  function wake() {
    awakeAt = performance.now();
    heartbeat();
  }

  function heartbeat() {
    if (!RS.boot || RS.boot.error) return;
    RS.bind();
    RS.ages();
    RS.navigated();
    RS.listen(!paused && !document.hidden);
    // Dash's links take no aria attributes; the current one must not be marked by colour alone.
    for (const link of RS.all("#runs a, #ranges a"))
      if (link.classList.contains("current")) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    const lost = since(Math.max(answeredAt, awakeAt)) > (RS.pushed() ? LOST_PUSHED : LOST) && !document.hidden;
    // A page about all runs has no state of one run: there the word is about the connection.
    const run = RS.view.rs || { name: "live", word: "Live" };
    const past = RS.pastAt(), live = run.name === "live" && past !== undefined && past < RS.now() - 10;
    const state = paused ? "paused" : run.name === "finished" ? "over" : lost ? "lost" : live ? "past" : run.name;
    const button = RS.by("live"), newest = RS.view.newest;
    button.dataset.live = state;
    button.title = paused ? "Resume live updates" : "Pause live updates";
    button.setAttribute("aria-pressed", String(paused));
    RS.by("live-word").textContent = { paused: "Paused", lost: "No connection", past: "Past range" }[state] || run.word;
    RS.by("live-age").textContent = aged(state, run, newest);
  }

  function aged(state, run, newest) {
    const lasts = run.since ? RS.format.span(RS.now() - run.since) : "";
    if (state === "past") return "as of " + RS.clockOf(RS.pastAt());
    if (state === "catching_up") return run.says || "reading history";
    if (state === "not_collected") return lasts && "for " + lasts;
    if (state === "stale") return lasts ? "no new data for " + lasts : "no data yet";
    return newest ? (state === "over" ? "ended " : "updated ") + RS.format.age(RS.now() - newest) : "no data yet";
  }

  // While a run catches up its charts end in the past: the window is another one.
  const catches = () => (RS.view.rs || {}).name === "catching_up";

  // What can be run next to this server: systems found on this machine, then examples. A second server could open
  // neither this one's port nor its store, so `watch` sends to this one.
  function commands(found) {
    const here = ` --push ${location.origin}${RS.by("app").dataset.base.replace(/\/$/, "")}`;
    const watched = found.map(([what, command]) => [what, command + here]);
    return [...watched, ["Another run: its engines and its run directory", "rollscope watch http://127.0.0.1:8000 ./outputs/my-run" + here],
      ["A simulated run, as a server of its own", "rollscope demo --port 0"]];
  }

  // A command, selected and copied with one click.
  function candidate([what, command]) {
    const li = RS.make("li"), code = RS.make("code", command), copy = RS.make("button", "Copy", "plain");
    copy.type = "button";
    copy.addEventListener("click", () => {
      getSelection().selectAllChildren(code);
      if (navigator.clipboard) navigator.clipboard.writeText(command).then(() => (copy.textContent = "Copied"), () => {});
    });
    li.append(RS.make("span", what), code, copy);
    return li;
  }

  function boot(found) {
    if (!found || (asked && found.page !== asked.n)) return none();
    const place = document.querySelector(`[data-place="${found.key}"]`);
    // Dash puts a new page's elements into the document after this callback.
    if (!found.error && !mounted(place)) return requestAnimationFrame(() => boot(found)), none();
    RS.boot = found;
    for (const other of RS.all("[data-place]")) other.hidden = other !== place;
    RS.by("app").dataset.shown = found.key;
    answeredAt = performance.now();
    pulledAt = 0;
    RS.by("app").dataset.page = found.error ? "error" : "ok";
    RS.by("run-name").textContent = RS.by("run-name").title = found.run || "no run";
    RS.by("app").dataset.empty = found.title ? "1" : "";
    RS.by("message-title").textContent = found.title || "Nothing to show";
    RS.by("message").textContent = found.error || "";
    RS.by("message-found").replaceChildren(...(found.found ? commands(found.found) : []).map(candidate));
    RS.navigated();
    if (found.error) return none();
    RS.reindex();
    for (const key of Object.keys(RS.view)) if (!(key in found.view)) found.view[key] = null;
    RS.fill(found.view);
    RS.boot.catches = catches();
    for (const [key, figure] of Object.entries(found.figures || {})) RS.figure(key, RS.overSteps(figure));
    delete found.figures;
    RS.sparks = found.sparks || {};
    for (const el of RS.all("[data-spark]")) RS.drawSpark(el.dataset.spark);
    for (const paint of RS.painters) paint();
    states();
    heartbeat();
    seen(found.cursor);
    settle(found);
    RS.jump();
    return none();
  }

  // Once what is near the screen is drawn, it listens, and a zoom that is still wanted is set again.
  function settle(found) {
    if (RS.boot !== found) return;
    if (!RS.chartsReady()) return void requestAnimationFrame(() => settle(found));
    RS.bind();
    if (RS.zoom) RS.slide();
    RS.settled();
  }

  // A panel shows its chart when it has points, and the reason when it has none. A line that is drawn has a legend,
  // also while it has no value.
  function states() {
    if (!RS.boot.drawn) return;
    for (const b of RS.all("[data-slot]")) b.parentNode.dataset.drawn = RS.boot.drawn.includes(b.dataset.t.slice(2, -2)) ? "1" : "";
    for (const el of RS.all("[data-panel]")) {
      const key = "p." + el.dataset.panel, now = RS.view[key + ".s"];
      const has = RS.boot.drawn.some((slot) => slot.split(".")[0] === el.dataset.panel);
      el.dataset.state = has ? (now === "ok" ? "data" : "stale") : now === "ok" ? "empty" : now;
      if (el.dataset.state === "empty") el.querySelector(".why p").textContent = "No points in this time range.";
    }
  }

  function pull() {
    ticks++;
    // The first load, or a change of run, failed: request it again.
    if (asked && (!RS.boot || RS.boot.page !== asked.n) && since(requestedAt) > GIVE_UP) RS.reload();
    // The run may appear later: an empty page is loaded again from time to time.
    if (RS.boot && RS.boot.error && RS.boot.page === asked.n && !document.hidden && ticks % LOOK === 0) RS.reload();
    if (!RS.boot || RS.boot.error || paused || document.hidden || RS.boot.page !== asked.n) return none();
    // A tick while a call is pending is skipped, so a slow server is not flooded. Dash does not report
    // failed calls: after a while a call counts as lost, and the next one is sent.
    if ((pulledAt && since(pulledAt) < GIVE_UP) || !RS.chartsReady()) return none();
    if (RS.boot.over && !RS.boot.all && !RS.busy() && resting()) return none();
    // With an open socket only notifications cause polls, and a slow timer that detects a lost server.
    if (RS.pushed() && !news && ticks - sentTick < QUIET) return none();
    return request();
  }

  // A run that is over changes only by a running pre-flight, a restart after a crash, or a new start.
  // It is polled rarely, and only while the user is active.
  const resting = () => ticks % IDLE_TICKS > 0 || !(looked || RS.view.life === "crashed");

  function request(fresh) {
    looked = news = false;
    RS.bind();
    pulledAt = performance.now();
    sentTick = ticks;
    const { page, key, run, all, cursor, have } = RS.boot;
    const span = RS.boot.timed ? [RS.boot.start, RS.boot.end, RS.boot.follow] : undefined;
    return { page, key, run, all: all || undefined, cursor, have, span, at: RS.pastAt(), ask: question(), fresh, n: ++sent };
  }

  // The end of a zoom or an absolute range, epoch seconds; texts describe it instead of the present.
  RS.pastAt = () => (RS.zoom ? Math.round((RS.range()[1] - RS.tz) / 1000) : RS.boot.at) ?? undefined;

  // Parameters of a request in addition to run and time: the page's own, and one-time parameters (`RS.once`).
  RS.once = {};
  function question() {
    const query = new URLSearchParams(location.search), found = new URLSearchParams(RS.once);
    for (const name of [...RS.boot.asks, "axis"]) if (query.has(name)) found.set(name, query.get(name));
    return found.toString() || undefined;
  }

  // Polls at once, or after the pull in progress. `fresh`: bypasses the server's caches.
  function look(kind) {
    if (!RS.boot || RS.boot.error || !RS.chartsReady()) return;
    const busy = pulledAt && since(pulledAt) < GIVE_UP;
    waiting = !busy ? "" : waiting === "fresh" ? waiting : kind;
    if (!busy) window.dash_clientside.set_props("pull", { data: request(kind === "fresh" || undefined) });
  }

  // Called after a change made on this page.
  RS.poke = () => look("fresh");
  // Called for new data on the server; a page that is being loaded has it, or gets it at its next tick.
  RS.news = function () {
    news = true;
    if (!paused && !document.hidden && asked && RS.boot && RS.boot.page === asked.n) look("news");
  };

  function apply(delta) {
    if (!delta || !RS.boot || delta.page !== RS.boot.page) return none();
    pulledAt = 0;
    if (delta.reset) return RS.reload(), none();
    Object.assign(RS.boot, { cursor: delta.cursor, have: delta.have, now: delta.now });
    answeredAt = performance.now();
    RS.fill(delta.view || {});
    const over = ["finished", "crashed"].includes(RS.view.life);
    if (over !== RS.boot.over || catches() !== RS.boot.catches) return RS.reload(), none();
    if (delta.view) states();
    draw(delta.points || {});
    heartbeat();
    seen(delta.cursor);
    if (waiting && !((paused || document.hidden) && waiting === "news")) look(waiting);
    return none();
  }

  // Up to where the page shows what is stored: what tests and benchmarks wait for.
  const seen = (cursor) => (RS.by("app").dataset.seq = cursor || "");

  function draw(points) {
    // An absolute time stands still, its small lines too.
    if (!RS.boot.follow) return;
    const byPanel = {};
    for (const [slot, found] of Object.entries(points)) {
      const [panel] = slot.split(".");
      if (panel === "k") sparkle(slot, found);
      else (byPanel[panel] ||= {})[slot] = found;
    }
    for (const [panel, found] of Object.entries(byPanel)) RS.grow(panel, found);
    RS.slide();
  }

  function sparkle(key, [ts, vs]) {
    const [xs, ys] = (RS.sparks[key] ||= [[], []]);
    const width = 1000 * (RS.boot.end - RS.boot.start), step = width / 60;
    ts.forEach((t, i) => {
      const last = xs.length - 1;
      if (last >= 0 && t - xs[last] < step && vs[i] !== null) ys[last] = vs[i];
      else xs.push(t), ys.push(vs[i]);
    });
    while (xs.length > 2 && xs[1] < ts[ts.length - 1] - width) xs.shift(), ys.shift();
    RS.drawSpark(key);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { rollscope: { open, boot, pull, apply } });
})(window.RS);
