// Runs: the list of all of them, sorted and filtered here, and the choice of those to compare, which is in the address.
(function (RS) {
  "use strict";
  const { make, by, cellOf } = RS, MOST = 8, DRAWN = 300, LETTERS = "ABCDEFGH";
  const here = () => RS.boot && RS.boot.key === "runs";
  const known = new Map();
  let order = "";

  RS.wanted = (name) => new URLSearchParams(location.search).get(name) || "";
  // Commas are readable and need no escape in a query.
  RS.want = function (changes) {
    history.replaceState(history.state, "", location.pathname + RS.query(changes).replace(/%2C/g, ",") + location.hash);
  };

  // A comma within a name is escaped, as is the escape.
  RS.chosen = () => (RS.wanted("compare").match(/(?:[^\\,]|\\.)+/g) || []).map((name) => name.replace(/\\(.)/g, "$1")).slice(0, MOST);
  RS.letter = (i) => LETTERS[i];
  RS.runRow = (name) => (known.get(name) || {}).cell;

  function choose(names) {
    RS.want({ compare: names.length ? names.map((name) => name.replace(/[\\,]/g, "\\$&")).join(",") : null });
    marked();
    RS.compare();
  }
  RS.unchoose = (name) => choose(RS.chosen().filter((one) => one !== name));

  // ---- one row

  function pill(words, state) {
    const el = make("span", words, "pill");
    el.dataset.state = state;
    return el;
  }

  function box(name) {
    const td = make("td", "", "pick"), label = make("label"), input = make("input");
    input.type = "checkbox";
    input.addEventListener("change", () => choose(input.checked ? [...RS.chosen(), name] : RS.chosen().filter((one) => one !== name)));
    label.append(input, make("span", "Compare " + name, "sr"));
    td.append(label);
    return td;
  }

  function link(page, name, words) {
    const el = make("a", words);
    el.href = RS.path(page) + "?" + new URLSearchParams({ run: name });
    el.dataset.in = "";
    return el;
  }

  function heading({ name, state: [, word, tone, says], about }) {
    const th = make("th"), line = make("span", "", "line");
    th.scope = "row";
    const go = link("overview", name, name);
    go.title = name;
    line.append(go, pill(word, tone));
    th.append(line, make("span", [about, says].filter(Boolean).join(" · "), "note"));
    return th;
  }

  function verdict({ verdict, colour, cause, sure, since, says }) {
    const chip = make("span", verdict, "chip"), note = make("span", "", "note"), words = [cause, sure].filter(Boolean).join(" · ");
    chip.dataset.state = colour;
    note.append(words);
    if (since) {
      const lasts = make("span");
      lasts.dataset.since = since;
      note.append(words ? " · for " : "for ", lasts);
    }
    const td = cellOf("Limiter", chip, note);
    td.title = says;
    return td;
  }

  function number(label, [words, state, why]) {
    const el = make("span", words, "num");
    el.dataset.state = state;
    const td = cellOf(label, el);
    td.title = why;
    return td;
  }

  function alerts({ name, fire, grave, dark }) {
    if (!fire) return cellOf("Alerts", make("span", dark ? "not evaluated" : "none", "note"));
    const go = link("alerts", name, "");
    go.append(pill(`${fire} firing`, grave));
    return cellOf("Alerts", go);
  }

  function age(cell) {
    const { up, down } = cell, at = make("span", "", "at"), health = make("span", up, "note");
    health.dataset.down = down ? "1" : "";
    return cellOf("Last data", at, health, RS.deleteButton(cell));
  }

  function fill(entry, cell) {
    const step = make("span", cell.step === null ? "–" : cell.step.toLocaleString("en"), "num");
    // All but the box: what is taken out of the page loses the focus.
    while (entry.tr.childElementCount > 1) entry.tr.lastChild.remove();
    entry.tr.append(heading(cell), verdict(cell), cellOf("Step", step), number("Wait", cell.wait),
      number("Staleness", cell.stale), number("$ / 1M tokens", cell.cost), alerts(cell), age(cell));
    entry.words = [cell.name, cell.state[1], cell.life, cell.about, cell.verdict, cell.cause].join("\n").toLowerCase();
  }

  // In place: a box that has the focus keeps it.
  function take(cell, at) {
    let entry = known.get(cell.name);
    if (!entry) {
      entry = { tr: make("tr"), said: "" };
      entry.tr.append(box(cell.name));
      known.set(cell.name, entry);
    }
    const said = JSON.stringify(cell);
    if (entry.said !== said) fill(Object.assign(entry, { said, cell }), cell);
    entry.at = at;
    const age = entry.tr.querySelector(".at");
    if (at) age.dataset.at = at;
    else age.textContent = "no data yet";
  }

  // ---- order

  const GRAVE = ["", "ok", "unknown", "watch", "critical"];
  const ALIVE = { live: 0, catching_up: 0, stale: 0, not_collected: 1, finished: 2 };
  const KEYS = { name: (e) => e.cell.name.toLowerCase(), verdict: (e) => e.cell.verdict, step: (e) => e.cell.step, fire: (e) => e.cell.fire,
    wait: (e) => e.cell.wait[3], stale: (e) => e.cell.stale[3], cost: (e) => e.cell.cost[3], at: (e) => e.at && Math.round(e.at / 30) };
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const plain = (a, b) => compare(ALIVE[a.cell.state[0]], ALIVE[b.cell.state[0]]) || compare(GRAVE.indexOf(b.cell.grave), GRAVE.indexOf(a.cell.grave)) || compare(b.cell.fire, a.cell.fire) || compare(a.cell.name, b.cell.name);

  function sorted(entries) {
    const asked = RS.wanted("sort"), down = asked.startsWith("-"), key = KEYS[asked.replace("-", "")];
    if (!key) return entries.sort(plain);
    // What is not known has no place among what is: last, whichever way.
    return entries.sort((a, b) => {
      const [x, y] = [key(a) ?? null, key(b) ?? null];
      if (x === null || y === null) return (x === null) - (y === null) || plain(a, b);
      return (down ? -1 : 1) * compare(x, y) || plain(a, b);
    });
  }

  function arrange() {
    const body = document.querySelector("[data-rows=runs]"), words = RS.wanted("find").toLowerCase().split(/\s+/).filter(Boolean);
    const found = sorted([...known.values()].filter((entry) => words.every((word) => entry.words.includes(word))));
    const shown = found.slice(0, DRAWN), next = shown.map((entry) => entry.cell.name).join("\n");
    if (next !== order || body.childElementCount !== shown.length) {
      const focus = document.activeElement;
      order = next;
      body.replaceChildren(...shown.map((entry) => entry.tr));
      if (body.contains(focus)) focus.focus({ preventScroll: true });
    }
    body.closest("table").hidden = !shown.length;
    const more = found.length > DRAWN ? `The first ${DRAWN} of ${found.length} are shown.` : "";
    by("rn-said").textContent = words.length && !found.length ? `No run matches “${RS.wanted("find")}”.` : words.length ? `${found.length} of ${known.size} runs. ${more}` : more;
    for (const button of RS.all(".fleet .sort")) {
      const asked = RS.wanted("sort"), way = asked === button.dataset.sort ? "ascending" : asked === "-" + button.dataset.sort ? "descending" : "";
      if (way) button.parentNode.setAttribute("aria-sort", way);
      else button.parentNode.removeAttribute("aria-sort");
    }
  }

  // ---- what is chosen

  function marked() {
    const chosen = RS.chosen();
    for (const [name, { tr }] of known) {
      const input = tr.querySelector("input"), at = chosen.indexOf(name);
      input.checked = at >= 0;
      input.disabled = at < 0 && chosen.length >= MOST;
      tr.dataset.chosen = at >= 0 ? "1" : "";
    }
    const clear = make("button", "Clear", "plain");
    clear.type = "button";
    clear.addEventListener("click", () => choose([]));
    const hint = chosen.length === 1 ? [make("span", "Choose one more to compare.", "note")] : chosen.length === MOST ? [make("span", `At most ${MOST} runs.`, "note")] : [];
    by("rn-chosen").replaceChildren(...(chosen.length ? [...chosen.map(chip), ...hint, clear] : []));
  }

  RS.keyOf = function (i) {
    const el = make("b", LETTERS[i], "letter");
    el.dataset.line = i;
    return el;
  };

  function chip(name, i) {
    const el = make("span", "", "chosen-one"), off = make("button", "×");
    off.type = "button";
    off.setAttribute("aria-label", `Remove ${name} from the comparison`);
    off.addEventListener("click", () => RS.unchoose(name));
    const words = make("span", name, "name");
    words.title = name;
    el.append(RS.keyOf(i), words, off);
    return el;
  }

  // A field that filters by what is typed, and keeps it in the address.
  RS.finder = function (id, words, changed, wait) {
    const where = by(id);
    if (!where || where.firstElementChild) return;
    const label = make("label"), input = make("input");
    let timer = null;
    Object.assign(input, { type: "search", placeholder: words, maxLength: 200, autocomplete: "off", spellcheck: false, value: RS.wanted("find") });
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => (RS.want({ find: input.value.trim() || null }), changed()), wait || 0);
    });
    label.append(make("span", words, "sr"), input);
    where.append(label);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".fleet .sort");
    if (!button) return;
    const key = button.dataset.sort, now = RS.wanted("sort"), first = key === "name" || key === "verdict" ? key : "-" + key;
    const other = first === key ? "-" + key : key;
    RS.want({ sort: now === first ? other : now === other ? null : first });
    arrange();
  });

  window.addEventListener("popstate", () => {
    if (!here() || !by("rn-chosen") || location.pathname !== RS.path("runs")) return;
    by("rn-find").querySelector("input").value = RS.wanted("find");
    arrange();
    marked();
    RS.compare();
  });

  RS.drawers.push((cells) => {
    if (!by("rn-chosen") || !("rn.at" in RS.view)) return;
    RS.finder("rn-find", "Filter by name, framework, verdict", arrange);
    if ("rn.at" in cells || RS.touched(cells, "rn.")) {
      const rows = RS.list("rn."), names = new Set(rows.map((row) => row.name));
      rows.forEach((row, i) => take(row, RS.view["rn.at"][i]));
      for (const name of known.keys()) if (!names.has(name)) known.delete(name);
      arrange();
      marked();
    }
    RS.compare(cells);
  });
})(window.RS);
