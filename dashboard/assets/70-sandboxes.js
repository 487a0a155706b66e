// Sandboxes: heat map and funnel as SVG, bars and rows, from the cells of `dashboard/sandboxes.py`. Only text nodes.
(function (RS) {
  "use strict";
  const { make, cellOf } = RS;
  const SVG = "http://www.w3.org/2000/svg", ROW = 13, LEFT = 52, RIGHT = 8, TOP = 6, AXIS = 20;
  const box = (name) => document.querySelector(`[data-draw=${name}]`);
  const shown = () => RS.boot && RS.boot.key === "sandboxes" && RS.view["sb.mode"] === "ok";

  function svg(tag, attributes, words) {
    const el = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) el.setAttribute(name, value);
    if (words !== undefined) el.textContent = words;
    return el;
  }

  function canvas(where, height, label) {
    const width = where.clientWidth, el = svg("svg", { width, height, role: "img", "aria-label": label });
    where.replaceChildren(el);
    return el;
  }

  // ---- heat map

  const seconds = (edge) => (edge === "+Inf" ? Infinity : Number(edge));
  const duration = (value) => RS.format.text(value, "seconds");

  // Rows are as high as each other whatever they span: within one, time runs by its logarithm.
  function scale(edges) {
    const bottom = TOP + edges.length * ROW;
    return (value) => {
      const i = edges.findIndex((edge) => value <= edge), low = i ? edges[i - 1] : edges[0] / 2, high = edges[i] === Infinity ? 4 * low : edges[i];
      const part = Math.log(Math.max(value, low) / low) / Math.log(high / low);
      return bottom - (i + Math.min(1, part)) * ROW;
    };
  }

  function columns() {
    const found = [];
    for (const [key, cell] of Object.entries(RS.view)) if (/^h\.\d+$/.test(key)) found.push([Number(key.slice(2)), cell]);
    return found;
  }

  function heat() {
    const where = box("heat");
    if (!where || !shown() || !where.clientWidth || !RS.view["h.edges"]) return;
    const names = RS.view["h.edges"], edges = names.map(seconds), width = 1000 * RS.view["h.width"], height = TOP + edges.length * ROW + AXIS;
    const [start, end] = RS.range(), wide = where.clientWidth - LEFT - RIGHT, y = scale(edges);
    const x = (ms) => LEFT + (wide * (ms - start)) / (end - start), inside = (at) => Math.min(LEFT + wide, Math.max(LEFT, at));
    const el = canvas(where, height, summary());
    const cells = svg("g", { class: "cells" });
    for (const [number, counts] of columns())
      for (const [edge, count] of counts) {
        const left = inside(x(number * width + RS.tz)), right = inside(x((number + 1) * width + RS.tz)), row = names.indexOf(edge);
        if (right - left < 0.5 || row < 0) continue;
        const strength = 0.16 + 0.84 * Math.sqrt(count / (RS.view["h.most"] || 1));
        cells.append(svg("rect", { x: left.toFixed(1), y: TOP + (edges.length - 1 - row) * ROW, width: Math.max(1, right - left - 1).toFixed(1), height: ROW - 1, "fill-opacity": strength.toFixed(2) }));
      }
    el.append(axes(edges, start, end, x, wide, height), cells);
    const room = (points) => points.filter(([at]) => at >= start && at <= end).map(([at, value]) => [x(at), y(value)]);
    el.append(line(room(series("k.sb_p95")), "dashed"), line(room(series("k.sb_oldest")), "oldest"));
    el.append(...tag(room(series("k.sb_oldest")), RS.view["sb.oldest"], LEFT + wide));
    where.look = { names, edges, width, start, end, wide };
    legend();
  }

  function series(key) {
    const [xs, ys] = RS.sparks[key] || [[], []];
    return xs.map((at, i) => [at + RS.tz, ys[i]]);
  }

  function axes(edges, start, end, x, wide, height) {
    const g = svg("g", { class: "axes" }), bottom = TOP + edges.length * ROW;
    edges.forEach((edge, i) => {
      const at = TOP + (edges.length - 1 - i) * ROW;
      g.append(svg("line", { x1: LEFT, x2: LEFT + wide, y1: at - 0.5, y2: at - 0.5 }));
      if (i % 2 && edge !== Infinity) g.append(svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, duration(edge)));
    });
    const steps = [15, 60, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000].map((s) => 1000 * s);
    const step = steps.find((s) => (end - start) / s <= Math.max(2, wide / 90)) || end - start;
    for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
      const words = step >= 86400000 ? RS.format.clock(at, true).slice(0, 5) : RS.format.clock(at).slice(0, step < 60000 ? 8 : 5);
      if (x(at) > LEFT + 14 && x(at) < LEFT + wide - 14) g.append(svg("text", { x: x(at), y: bottom + 14, "text-anchor": "middle" }, words));
    }
    return g;
  }

  // A gap in the data is a gap in the line.
  function line(points, name) {
    let path = "", pen = "M";
    for (const [x, y] of points) {
      if (!Number.isFinite(y)) pen = "M";
      else (path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`), (pen = "L");
    }
    return svg("path", { d: path, class: name });
  }

  // The number stands where the line ends, which is where it matters.
  function tag(points, words, most) {
    const last = points.findLast(([, y]) => Number.isFinite(y));
    if (!last || !words) return [];
    const [x, y] = last, below = y < TOP + 2 * ROW;
    return [svg("circle", { cx: x, cy: y, r: 4, class: "end" }),
      svg("text", { x: Math.min(x + 2, most), y: below ? y + 18 : y - 9, "text-anchor": "end", class: "tag" }, "oldest pending " + words)];
  }

  function summary() {
    const number = (RS.view["h.total"] || 0).toLocaleString("en"), oldest = RS.view["sb.oldest"], p95 = RS.view["sb.p95"];
    return `${number} sandboxes became ready in this time` + (p95 ? `, p95 now ${p95}` : "") + (oldest ? `; the oldest pending has waited ${oldest}` : "");
  }

  function legend() {
    const where = document.querySelector("[data-scale=heat]"), most = RS.view["h.most"];
    const per = RS.format.span(RS.view["h.width"]), key = `${most} ${per}`;
    if (!where || where.dataset.most === key) return;
    where.dataset.most = key;
    where.replaceChildren(...(most ? [make("span", most > 1 ? "1" : ""), make("i"), make("span", `${most.toLocaleString("en")} in ${per}`)] : []));
  }

  function between(names, row) {
    const edge = names[row], before = names[row - 1];
    if (edge === "+Inf") return "over " + duration(Number(before));
    return row ? `${duration(Number(before))} to ${duration(Number(edge))}` : "up to " + duration(Number(edge));
  }

  function look(event) {
    const where = event.currentTarget, at = where.closest(".panel").querySelector(".at"), found = where.look;
    if (!found) return;
    const area = where.getBoundingClientRect(), ms = found.start + ((event.clientX - area.left - LEFT) / found.wide) * (found.end - found.start);
    const row = found.edges.length - 1 - Math.floor((event.clientY - area.top - TOP) / ROW);
    if (ms < found.start || ms > found.end || row < 0 || row >= found.names.length) return void (at.textContent = "");
    const column = Math.floor((ms - RS.tz) / found.width), counts = RS.view["h." + column] || [];
    const [, count] = counts.find(([edge]) => edge === found.names[row]) || [0, 0];
    const when = RS.format.clock(column * found.width + RS.tz, found.end - found.start > 86400000).slice(0, found.end - found.start > 86400000 ? 11 : 5);
    at.textContent = `${when} · ${between(found.names, row)}: ${count.toLocaleString("en")}`;
  }

  // ---- funnel

  const FADE = { requested: 1, started: 0.85, ready: 0.7, "first exec": 0.55 };

  function funnel() {
    const where = box("funnel"), rows = RS.view["sb.funnel"] || [];
    if (!where || !shown()) return;
    // First, for what is hidden has no width, and would stay hidden when rows come.
    where.hidden = !rows.length;
    if (!rows.length) return where.replaceChildren();
    if (!where.clientWidth) return;
    const number = (count) => (count === null ? "not told" : count.toLocaleString("en"));
    where.classList.toggle("tight", where.clientWidth / rows.length < 62);
    const el = canvas(where, 236, rows.map(([stage, count]) => `${stage} ${number(count)}`).join(", "));
    const wide = where.clientWidth / rows.length, bar = Math.min(64, wide * 0.62), middle = 132, tall = 144;
    const left = (i) => wide * i + (wide - bar) / 2, high = (share) => Math.max(share > 0 ? 2 : 0, Math.min(1, share) * tall);
    // What flows on from a stage to the next that is told; a failure may come at any of them.
    const chain = rows.map((row, i) => [i, row]).filter(([, [stage, count]]) => count !== null && stage !== "failed");
    chain.slice(1).forEach(([i, [, , share]], n) => {
      const [from, [, , before]] = chain[n], a = left(from) + bar, b = left(i);
      el.append(svg("path", { class: "flows", d: `M${a} ${middle - high(before) / 2}L${b} ${middle - high(share) / 2}V${middle + high(share) / 2}L${a} ${middle + high(before) / 2}Z` }));
    });
    rows.forEach(([stage, count, share], i) => {
      const centre = wide * (i + 0.5), size = high(share);
      el.append(svg("rect", { class: count === null ? "silent" : stage.replace(" ", "-"), x: left(i), y: middle - size / 2, width: bar, height: size, rx: Math.min(3, size / 2), "fill-opacity": FADE[stage] || 1 }));
      el.append(svg("text", { x: centre, y: 14, "text-anchor": "middle" }, stage));
      el.append(svg("text", { x: centre, y: 34, "text-anchor": "middle", class: count === null ? "none" : "count " + stage.replace(" ", "-") }, number(count)));
      if (i && count !== null && RS.view["sb.funnel.shares"]) el.append(svg("text", { x: centre, y: 226, "text-anchor": "middle" }, RS.format.text(share, "ratio")));
    });
  }

  // ---- bars and rows

  function bar(name, value, width, state) {
    const li = make("li"), head = make("span", "", "row"), track = make("span", "", "bar"), fill = make("span");
    head.append(make("span", name), make("b", value));
    fill.style.width = width + "%";
    fill.dataset.state = state;
    track.append(fill);
    li.append(head, track);
    return li;
  }

  function cause([name, count, width, words, at]) {
    const li = bar(name, count, width, "failed");
    if (at) {
      const note = make("span", "newest, ", "note");
      note.append(RS.aged(at, ""), words ? ": " + words : "");
      if (words.length > 48) (note.title = words), note.classList.add("long");
      li.append(note);
    }
    return li;
  }

  const quota = ([name, value, width, state]) => bar(name, value, width, state);

  // How long, counted on here.
  function waited(at) {
    const el = make("span", at ? "" : "unknown");
    if (at) (el.dataset.since = at), (el.title = new Date(at * 1000).toLocaleString());
    return el;
  }

  // What others named: two lines of it, and the whole in the tip.
  function word(text, name) {
    const el = make("span", text, name);
    if (String(text).length > 48) (el.title = text), el.classList.add("long");
    return el;
  }

  function named(id, more) {
    const th = make("th");
    th.scope = "row";
    th.append(word(id), word(more, "note"));
    return th;
  }

  function pending([id, name, image, built, at, state, said, provider]) {
    const tr = make("tr");
    tr.append(named(id, [name === id ? "" : name, provider].filter(Boolean).join(" · ")), cellOf("Image", word(image), make("span", built, "note")),
      cellOf("Waiting for", waited(at)), cellOf("State", make("span", state), word(said, "note")));
    return tr;
  }

  function dangling([id, run, at, provider, state, name]) {
    const tr = make("tr");
    tr.append(named(id, [name === id ? "" : name, state].filter(Boolean).join(" · ")), cellOf("Belongs to", word(run || "not told")), cellOf("Age", waited(at)), cellOf("Provider", word(provider)));
    return tr;
  }

  const OK = { running: "ok", failed: "critical", terminated: "ended" };
  RS.failure = failure;
  function failure([id, name, state, cause, words, at, provider]) {
    const tr = make("tr"), what = make("span", cause ? cause.replace("_", " ") : state, "pill"), when = make("span");
    what.dataset.state = OK[state] || "unknown";
    if (at) (when.dataset.at = at), (when.title = new Date(at * 1000).toLocaleString());
    tr.append(named(id, [name === id ? "" : name, provider].filter(Boolean).join(" · ")),
      cellOf("What happened", what, word(words, "note")), cellOf("When", when));
    return tr;
  }

  function source([target, kind, up, seen, error]) {
    const li = make("li"), word = make("span", up ? "Up" : "Down", "pill");
    word.dataset.state = up ? (error ? "watch" : "ok") : "critical";
    li.append(word, make("b", target), make("span", kind === target ? "" : kind, "kind"));
    li.append(error ? make("span", error, "error") : RS.aged(seen, "no answer yet"));
    return li;
  }

  const TABLES = [["sb.src.", "box-sources", source], ["sb.f.", "box-causes", cause], ["sb.q.", "box-quota", quota],
    ["sb.p.", "box-pending", pending], ["sb.d.", "box-dangling", dangling], ["sb.x.", "box-failures", failure]];
  RS.newestFailures = () => RS.list("sb.x.").map(failure);

  function rows(cells) {
    for (const [prefix, where, draw] of TABLES) {
      const el = document.querySelector(`[data-rows=${where}]`);
      // What was looked for stays until the field is empty again.
      if (!el || el.dataset.found || !("sb.mode" in cells || RS.touched(cells, prefix))) continue;
      const found = RS.list(prefix);
      el.replaceChildren(...found.map(draw));
      // A head without rows says nothing.
      const table = el.closest("table");
      if (table) table.hidden = !found.length;
    }
  }

  // Under the name by which this browser reached us: the trainer's machine most likely does, too.
  function recipe() {
    const address = location.origin + RS.by("app").dataset.base.replace(/\/$/, "");
    document.querySelector("[data-code=recipe]").textContent = (RS.view["sb.recipe"] || "").replace("@here@", address);
  }

  let seer = null;
  // The drawings are as wide as their boxes, which have a width once the page is seen.
  function watch() {
    // Only of the width: what is drawn sets the height.
    seer ||= new ResizeObserver((entries) => {
      for (const { target } of entries) {
        if (target.wide === target.clientWidth) continue;
        target.wide = target.clientWidth;
        if (target.dataset.draw === "heat") heat();
        else funnel();
      }
    });
    for (const el of [box("heat"), box("funnel")]) {
      if (!el || el.bound) continue;
      el.bound = true;
      seer.observe(el);
    }
    const area = box("heat");
    if (!area || area.looked) return;
    area.looked = true;
    area.addEventListener("pointermove", look);
    area.addEventListener("pointerleave", () => (area.closest(".panel").querySelector(".at").textContent = ""));
  }

  RS.drawers.push((cells) => {
    if (!("sb.mode" in RS.view)) return;
    rows(cells);
    watch();
    if ("sb.recipe" in cells) recipe();
    if ("sb.funnel" in cells || "sb.funnel.shares" in cells || "sb.mode" in cells) funnel();
    if (Object.keys(cells).some((key) => key.startsWith("h."))) heat();
  });
  RS.painters.push(heat);
})(window.RS);
