// Weight updates (`dashboard/charts/weight_updates.py`) as thin vertical lines on every chart over time, as ticks where they are many;
// change points of what drifts as lines, always.
(function (RS) {
  "use strict";
  // Most weight updates drawn as full-height lines; more are short ticks, because lines would hide the data.
  const LINES = 12;
  // Height of a tick, pixels.
  const TICK = 7;
  let known = null;

  // [[local ms, version or null, text of a change point or ""], ...], oldest first.
  RS.marks = function () {
    if (known) return known;
    const found = [], width = RS.view["w.width"];
    for (const [key, cell] of Object.entries(RS.view)) {
      const [, drift, column] = /^w\.(d\.)?(-?\d+)$/.exec(key) || [];
      if (column) for (const [after, what] of cell) found.push([1000 * (Number(column) * width + after) + RS.tz, drift ? null : what, drift ? what : ""]);
    }
    return (known = found.sort((a, b) => a[0] - b[0]));
  };

  // Whole pixels, so that a window that moves by less changes nothing.
  RS.markPath = function (x, top, bottom, start, end) {
    const shown = RS.marks().filter(([at]) => at >= start && at <= end), from = shown.length > LINES ? bottom - TICK : top;
    return shown.map(([at, , words]) => `M${Math.round(x(at)) + 0.5} ${words ? top : from}V${bottom}`).join("");
  };

  // What was published at this time, within a few pixels.
  RS.markAt = function (ms, perPixel) {
    const best = RS.near(RS.marks(), ms, perPixel);
    return best ? best[2] || (best[1] === null ? "weights published" : `v${best[1]} published`) : "";
  };

  function paint() {
    if (RS.boot && !RS.boot.error && RS.view["w.width"]) RS.over("over", "marks", RS.markPath);
  }

  RS.drawers.push((cells) => {
    if (!Object.keys(cells).some((key) => key.startsWith("w."))) return;
    known = null;
    for (const painter of RS.painters) painter();
  });
  RS.repaint(paint);
})(window.RS);
