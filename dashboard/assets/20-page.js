// Fills the page's texts from its cells (`dashboard/shell/page.py`), draws target rows and sparklines, switches the theme.
(function (RS) {
  "use strict";
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  RS.all = all;
  RS.by = by;
  RS.view = {};
  RS.sparks = {};
  // Functions that draw rows from cells; called with the changed cells.
  RS.drawers = [];
  // Functions that draw time series without Plotly; called for new points and when the window moves.
  RS.painters = [];

  // Epoch seconds as the reader's clock has them, with the day when it is not today's.
  RS.clockOf = function (at) {
    const [then, now] = [at, RS.boot ? RS.now() : at].map((ts) => new Date(ts * 1000 + RS.tz).toISOString());
    return (then.slice(0, 10) === now.slice(0, 10) ? "" : then.slice(5, 10) + " ") + then.slice(11, 16);
  };

  // Only textContent and style properties, so that names of runs and targets cannot become markup.
  const put = { t: (el, cell) => (el.textContent = cell ?? ""), s: (el, cell) => (el.dataset.state = cell ?? ""),
    w: (el, cell) => (el.style.width = (cell || 0) + "%"), a: (el, cell) => (el.dataset.at = cell ?? ""),
    h: (el, cell) => (el.title = cell ?? ""), c: (el, cell) => (el.textContent = cell ? RS.clockOf(cell) : ""),
    q: (el, cell) => ((el.hidden = !cell), (el.dataset.changes = cell || ""), RS.boot && RS.navigated()),
    d: (el, cell) => (cell ? (el.dataset.since = cell) : (delete el.dataset.since, (el.textContent = ""))) };
  let index = null;

  function elements() {
    if (index) return index;
    const found = {};
    for (const kind of Object.keys(put))
      for (const el of all(`[data-${kind}]`)) (found[el.dataset[kind]] ||= []).push([kind, el]);
    return (index = found);
  }

  // Elements were added or removed: the next fill builds the index again.
  RS.reindex = () => (index = null);

  RS.fill = function (cells) {
    for (const [key, cell] of Object.entries(cells)) {
      if (cell === null) delete RS.view[key];
      else RS.view[key] = cell;
    }
    for (const draw of RS.drawers) draw(cells);
    const where = elements();
    for (const [key, cell] of Object.entries(cells)) {
      for (const [kind, el] of where[key] || [])
        // While the cursor is on a chart, the headers show the values under it.
        if (!(kind === "t" && RS.hovering && el.dataset.slot)) put[kind](el, cell);
    }
    by("app").dataset.next = RS.view["f.next.0"] ? "steps" : "trust";
    RS.ages();
  };

  // Rows `PREFIX0`, `PREFIX1` .. of the view.
  RS.list = function (prefix) {
    const found = [];
    for (let i = 0; RS.view[prefix + i]; i++) found.push(RS.view[prefix + i]);
    return found;
  };
  RS.touched = (cells, prefix) => Object.keys(cells).some((key) => key.startsWith(prefix) && /^\d+$/.test(key.slice(prefix.length)));

  RS.make = make;
  RS.aged = aged;
  function make(tag, text, name) {
    const el = document.createElement(tag);
    if (text) el.textContent = text;
    if (name) el.className = name;
    return el;
  }

  function aged(at, none) {
    const el = make("span", at ? "" : none);
    if (at) el.dataset.at = at;
    return el;
  }

  RS.drawers.push((cells) => {
    const table = document.querySelector("[data-rows=trust]");
    if (!table || !RS.touched(cells, "t.")) return;
    const found = RS.list("t.");
    table.replaceChildren(...found.map(row));
    document.querySelector("[data-rows=brief]").replaceChildren(...short(found).map(brief));
  });

  // Rows come worst first: targets that are down, then one healthy target per actor.
  function short(found) {
    const actors = new Set();
    const picked = found.filter(([, actor, , up, , error]) => up < 2 && (!up || error || (!actors.has(actor) && actors.add(actor))));
    return picked.slice(0, 3);
  }

  // Announces a text to screen readers and moves the focus to it, before the focused element is removed.
  RS.say = function (id, words) {
    const el = by(id);
    el.textContent = words;
    el.tabIndex = -1;
    el.focus();
  };

  RS.cellOf = cellOf;
  function cellOf(label, ...children) {
    const td = make("td");
    td.dataset.label = label;
    td.append(...children);
    return td;
  }

  function status(up, error) {
    const el = make("span", ["Down", "Up", "Gone", "Not read"][up], "pill");
    el.dataset.state = ["critical", error ? "watch" : "ok", "unknown", "unknown"][up];
    return el;
  }

  function row([target, actor, kind, up, seen, error, samples, dropped, unmapped, count]) {
    const tr = make("tr");
    const name = make("th", target);
    name.scope = "row";
    const bad = make("span", error, "error");
    tr.append(name, cellOf("Actor", make("span", actor, "actor-" + actor), make("span", kind, "kind")),
      cellOf("Status", status(up, error), bad), cellOf("Last read", aged(seen, "never")),
      cellOf("Samples in last read", make("span", samples), make("span", dropped, "error")), cellOf("Unmapped keys", Object.assign(make("span", unmapped ? String(count) : "none"), { title: unmapped })));
    return tr;
  }

  function brief([target, , kind, up, seen, error]) {
    const li = make("li");
    li.append(status(up, error), make("b", target), make("span", kind, "kind"));
    li.append(error ? make("span", error, "error") : aged(seen, "no data yet"));
    return li;
  }

  // Ages count up here, also while the server is gone.
  RS.ages = function () {
    if (!RS.boot) return;
    for (const el of all("[data-at]")) {
      const at = el.dataset.at;
      el.textContent = at ? RS.format.age(RS.now() - at) : "";
    }
    for (const el of all("[data-since]")) el.textContent = RS.format.span(RS.now() - el.dataset.since);
    for (const el of all("[data-till]")) el.textContent = RS.format.span(el.dataset.till - RS.now());
  };

  // One path per sparkline; a gap in the data is a gap in the path.
  RS.drawSpark = function (key) {
    const box = all(`[data-spark="${key}"]`)[0];
    const [xs, ys] = RS.sparks[key] || [[], []];
    const known = ys.filter((y) => y !== null);
    if (!box) return;
    if (known.length < 2) return box.replaceChildren();
    const low = Math.min(...known), high = Math.max(...known), first = xs[0], wide = xs[xs.length - 1] - first || 1;
    let pen = "M", path = "";
    ys.forEach((y, i) => {
      if (y === null) return (pen = "M");
      const up = high > low ? 25 - (22 * (y - low)) / (high - low) : 14;
      path += `${pen}${((100 * (xs[i] - first)) / wide).toFixed(1)} ${up.toFixed(1)}`;
      pen = "L";
    });
    const svg = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "path");
    svg.setAttribute("viewBox", "0 0 100 28");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    line.setAttribute("d", path);
    svg.append(line);
    box.replaceChildren(svg);
  };

  const CHOICES = ["system", "light", "dark"], NAMES = { system: "Auto", light: "Light", dark: "Dark" };
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  function theme(choice) {
    const root = document.documentElement;
    root.dataset.choice = choice;
    root.dataset.theme = choice === "dark" || (choice === "system" && prefersDark.matches) ? "dark" : "light";
    if (!by("theme")) return;
    by("theme-word").textContent = NAMES[choice];
    by("theme").title = "Theme: " + choice;
  }

  RS.showTheme = () => theme(document.documentElement.dataset.choice);
  prefersDark.addEventListener("change", RS.showTheme);
  document.addEventListener("click", (event) => {
    const menu = by("run-menu");
    if (menu && (!menu.contains(event.target) || event.target.closest("a"))) menu.open = false;
    if (!event.target.closest("#theme")) return;
    const next = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.choice) + 1) % 3];
    try { localStorage.setItem("rollscope-theme", next); } catch (blocked) { /* private mode: lasts for this page */ }
    theme(next);
  });
  document.addEventListener("keydown", (event) => {
    const menu = by("run-menu");
    if (event.key !== "Escape" || !menu || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
})(window.RS);
