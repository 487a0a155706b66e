// Weight updates (`dashboard/updates.py`) as thin vertical lines on every chart over time, as ticks where they are many;
// change points of what drifts as lines, always.
(function (RS) {
  "use strict";
  const LINES = 40, TICK = 7, NEAR = 4, SVG = "http://www.w3.org/2000/svg";
  let known = null;

  // [[local ms, version or null, words of a change point or nothing], ...], the oldest first.
  RS.marks = function () {
    if (known) return known;
    const found = [], width = RS.view["w.width"];
    for (const [key, cell] of Object.entries(RS.view)) {
      const [, drift, column] = /^w\.(d\.)?(-?\d+)$/.exec(key) || [];
      if (column) for (const [after, what] of cell) found.push([1000 * (Number(column) * width + after) + RS.tz, drift ? null : what, drift ? what : ""]);
    }
    return (known = found.sort((a, b) => a[0] - b[0]));
  };

  // Whole pixels: a window that moves by a part of one draws nothing anew.
  RS.markPath = function (x, top, bottom, start, end) {
    const shown = RS.marks().filter(([at]) => at >= start && at <= end), from = shown.length > LINES ? bottom - TICK : top;
    return shown.map(([at, , words]) => `M${Math.round(x(at)) + 0.5} ${words ? top : from}V${bottom}`).join("");
  };

  // What was published at this time, within a few pixels.
  RS.markAt = function (ms, perPixel) {
    let best = null;
    for (const mark of RS.marks()) if (Math.abs(mark[0] - ms) <= NEAR * perPixel && (!best || Math.abs(mark[0] - ms) < Math.abs(best[0] - ms))) best = mark;
    return best ? best[2] || (best[1] === null ? "weights published" : `v${best[1]} published`) : "";
  };

  function paint() {
    if (!RS.boot || RS.boot.error || !RS.view["w.width"]) return;
    const [start, end] = RS.range();
    for (const [el, gd] of RS.plots()) {
      const { _offset: left, _length: wide } = gd._fullLayout.xaxis, { t: top, h: high } = gd._fullLayout._size;
      const d = RS.markPath((ms) => left + (wide * (ms - start)) / (end - start), top, top + high, start, end);
      const path = overlay(el.querySelector(".plot"));
      if (path.getAttribute("d") !== d) path.setAttribute("d", d);
    }
  }

  function overlay(plot) {
    const there = plot.querySelector(".over path");
    if (there) return there;
    const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
    svg.setAttribute("class", "over");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("class", "marks");
    svg.append(path);
    plot.append(svg);
    return path;
  }

  RS.drawers.push((cells) => {
    if (!Object.keys(cells).some((key) => key.startsWith("w."))) return;
    known = null;
    for (const painter of RS.painters) painter();
  });
  RS.painters.push(paint);
  let later = null;
  window.addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(paint, 200);
  });
})(window.RS);
