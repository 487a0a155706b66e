// Restarts and alerts that began to fire (`dashboard/charts/event_markers.py`) on every chart over time, and what all its marks mean.
(function (RS) {
  "use strict";
  // Marks closer than this many pixels are drawn as one.
  const APART = 8;
  // Half the width of a glyph, pixels.
  const HALF = 4;
  // Length of an alert's stem, pixels: full-height lines of many alerts would hide the data.
  const STEM = 14;
  let known = null;

  // { r: [[local ms, text], ...], a: [[local ms, name, severity], ...] }, oldest first.
  function events() {
    if (known) return known;
    const found = { r: [], a: [] }, width = RS.view["w.width"];
    for (const [key, cell] of Object.entries(RS.view)) {
      const [, kind, column] = /^w\.([ar])\.(-?\d+)$/.exec(key) || [];
      if (kind) for (const [after, ...words] of cell) found[kind].push([1000 * (column * width + after) + RS.tz, ...words]);
    }
    for (const rows of Object.values(found)) rows.sort((a, b) => a[0] - b[0]);
    return (known = found);
  }

  // One mark for events closer than `APART` pixels.
  function path(rows, glyph, stem) {
    return (x, top, bottom, start, end) => {
      let last = -Infinity, drawn = "";
      for (const [ms] of rows) {
        const at = Math.round(x(ms)) + 0.5;
        if (ms < start || ms > end || at - last < APART) continue;
        last = at;
        drawn += `M${at} ${top}V${Math.min(bottom, top + stem)}${glyph(at, top)}`;
      }
      return drawn;
    };
  }

  const triangle = (x, y) => `M${x - HALF} ${y}h${2 * HALF}l${-HALF} ${1.6 * HALF}z`;
  const diamond = (x, y) => `M${x} ${y}l${HALF} ${HALF}l${-HALF} ${HALF}l${-HALF} ${-HALF}z`;
  const grave = ([, , severity]) => severity === "critical";
  const LAYERS = [
    ["restarted", "a restart", () => events().r, diamond, Infinity],
    ["warned", "an alert fired", () => events().a.filter((row) => !grave(row)), triangle, STEM],
    ["fired", "a critical alert fired", () => events().a.filter(grave), triangle, STEM],
  ];

  function paint() {
    if (!RS.boot || RS.boot.error || !RS.view["w.width"]) return;
    for (const [name, , rows, glyph, stem] of LAYERS)
      // A layer without marks is not created.
      if (rows().length || document.querySelector(`.${name}`)) RS.over("events-" + name, name, path(rows(), glyph, stem));
    legend();
  }

  // What is near a time, within a few pixels: all of it, for marks that are drawn as one.
  RS.eventAt = function (ms, perPixel) {
    const near = ([at]) => Math.abs(at - ms) <= (APART / 2) * perPixel;
    const words = [...events().r.filter(near).map(([, what]) => what), ...events().a.filter(near).map(([, name]) => `${name} fired`)];
    return words.length > 3 ? words.slice(0, 3).join(" · ") + ` and ${words.length - 3} more` : words.join(" · ");
  };

  // For pictures: [[local ms, what], ...] of everything that is marked.
  RS.allMarks = () => [...events().r.map(([at]) => [at, "restarted"]), ...events().a.map((row) => [row[0], grave(row) ? "fired" : "warned"])];

  function kinds(noted) {
    const [start, end] = RS.range(), inside = (row) => row[0] >= start && row[0] <= end, found = [];
    const some = (name, words, rows) => rows.some(inside) && found.push([name, words]);
    // Pages with a text on weight updates show their mark there.
    if (!noted) some("published", "weight update", RS.marks().filter((row) => !row[2]));
    some("drifted", "behaviour or source changed", RS.marks().filter((row) => row[2]));
    some("turned", "verdict changed", RS.turns());
    for (const [name, words, rows] of LAYERS) some(name, words.replace(/^an? /, ""), rows());
    return found;
  }

  function legend() {
    const place = document.querySelector(`[data-place="${RS.boot.key}"]`), panels = RS.all("[data-panel]", place);
    if (!panels.length) return;
    const noted = place.querySelector(".marks-note:not(:empty)"), found = kinds(noted), said = found.map(([name]) => name).join(" ");
    let where = place.querySelector(".marks-legend");
    if (!where) {
      where = RS.make("p", "", "note marks-legend");
      (place.querySelector(".marks-note") || panels[panels.length - 1]).after(where);
    }
    if (where.dataset.said === said) return;
    where.dataset.said = said;
    where.replaceChildren(...found.map(([name, words]) => item(name, words)));
  }

  function item(name, words) {
    const span = RS.make("span", "", "item"), el = RS.svg("svg", { width: 12, height: 14, "aria-hidden": "true" });
    const layer = LAYERS.find(([one]) => one === name), glyph = layer ? layer[3](6.5, 1) : "";
    el.append(RS.svg("path", { d: `M6.5 1V13${glyph}`, class: { published: "marks", drifted: "marks" }[name] || name }));
    span.append(el, words);
    return span;
  }

  RS.drawers.push((cells) => {
    if (!Object.keys(cells).some((key) => key.startsWith("w."))) return;
    known = null;
    paint();
  });
  RS.repaint(paint);
})(window.RS);
