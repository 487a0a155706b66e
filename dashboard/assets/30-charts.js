// Charts: new points, the moving window, a zoom and a cross-hair that all panels share.
(function (RS) {
  "use strict";
  const visible = new Set();
  const buckets = new WeakMap();
  let seer = null;
  RS.zoom = null;
  RS.tz = -60000 * new Date().getTimezoneOffset();

  const time = (x) => (typeof x === "number" ? x : Date.parse(String(x).replace(" ", "T") + "Z"));
  const window_ = () => {
    const b = RS.boot, end = b.follow ? Math.max(b.end, RS.boot.now) : b.end;
    return [1000 * (end - (b.end - b.start)) + RS.tz, 1000 * end + RS.tz];
  };
  const range = () => RS.zoom || window_();
  RS.range = () => range().map(time);
  // The same on the x axis, which may be one of steps (`32-steps.js`).
  const across = () => RS.across(...RS.range());

  // A gap is a gap, but Plotly fills areas across it: there an area is a held zero (`figures._fill`), and a band of
  // extremes has no height (`figures._envelope`).
  function gap(gd, trace) {
    const [slot, edge] = String(trace.meta).split(":");
    if (edge !== "lo" && edge !== "hi") return edge ? 0 : null;
    const line = gd.data.find((other) => other.meta === slot);
    return line.y.findLast((y) => y !== null) ?? null;
  }

  // One point into one trace. Late points find their place; points of one bucket become one, but never with a gap.
  function insert(trace, x, y, width) {
    const xs = trace.x, ys = trace.y, last = xs.length - 1;
    const seen = buckets.get(trace) || { n: 1 };
    const edge = String(trace.meta).split(":")[1];
    if (x > xs[last] && x - xs[last] < width && y !== null && ys[last] !== null) {
      const mean = (ys[last] * seen.n + y) / (seen.n + 1);
      buckets.set(trace, { n: seen.n + 1 });
      return void (ys[last] = edge === "lo" ? Math.min(ys[last], y) : edge === "hi" ? Math.max(ys[last], y) : mean);
    }
    if (last < 0 || x > xs[last]) {
      buckets.set(trace, { n: 1 });
      return [x, y];
    }
    let at = last;
    while (at > 0 && xs[at - 1] >= x) at--;
    if (xs[at] === x) ys[at] = y;
    else xs.splice(at, 0, x), ys.splice(at, 0, y);
  }

  // Drops points before the window (or the zoom, which may start earlier).
  function forget(trace, oldest) {
    let gone = 0;
    while (gone < trace.x.length - 2 && trace.x[gone + 1] < oldest) gone++;
    if (gone) trace.x.splice(0, gone), trace.y.splice(0, gone);
  }

  function add(gd, found) {
    const oldest = Math.min(across()[0], RS.toX(window_()[0]));
    // A bucket slightly narrower than requested, because clocks jitter and two ticks must not fall into one.
    const width = RS.widthX(900 * RS.boot.bucket);
    for (const trace of gd.data) {
      const [slot, edge] = String(trace.meta).split(":"), [ts, vs] = found[slot] || [[], []];
      if (edge === "band") continue;
      const fresh = ts.map((t, j) => insert(trace, RS.slotX(t + RS.tz, slot), vs[j] ?? gap(gd, trace), vs[j] === null ? 0 : width)).filter(Boolean);
      forget(trace, oldest);
      for (const [x, y] of fresh) trace.x.push(x), trace.y.push(y);
    }
    RS.bands(gd.data);
  }

  // Panels out of sight take the points but are not drawn, because drawing is the expensive part.
  RS.grow = function (key, found) {
    const gd = document.querySelector(`#graph-${key} .chart`), seen = visible.has(key) && gd._fullLayout;
    const known = new Set(gd.data.map((trace) => trace.meta));
    const starts = ([slot, [, vs]]) => !known.has(slot) && vs.some((v) => v !== null);
    if (Object.entries(found).some(starts)) return RS.reload();
    add(gd, found);
    RS.placed(gd);
    if (seen) window.Plotly.redraw(gd);
    else gd.stale = true;
  };

  // While the first answers are short the KV caches hold thousands of them: where a limit is far above what it mostly was
  // and is, it runs out of the chart, or all below it would be one flat line. One that merely falls is seen whole.
  const FAR = 3, MOSTLY = 0.75;
  RS.limited = function ({ data, layout }) {
    if (!layout.meta) return;
    const mine = (trace) => String(trace.meta).split(":").includes(layout.meta);
    const of = (keep) => data.filter((trace) => mine(trace) === keep && !String(trace.meta).endsWith(":band")).flatMap((trace) => trace.y).filter((y) => y !== null);
    const limit = of(true).sort((a, b) => a - b), newest = data.find((trace) => trace.meta === layout.meta)?.y.at(-1) ?? 0;
    const most = of(false).reduce((a, b) => Math.max(a, b), Math.max(newest, limit[Math.floor(MOSTLY * limit.length)]));
    layout.yaxis.autorangeoptions = limit.at(-1) > FAR * most ? { clipmax: 1.08 * most } : {};
  };

  RS.placed = function (gd) {
    Object.assign(gd.layout.xaxis, { range: across(), autorange: false });
    RS.limited(gd);
  };
  RS.paint = function () {
    if (RS.boot && !RS.boot.error && RS.chartsReady()) for (const paint of RS.painters) paint();
  };

  // Panels without new points follow the window once it has moved by a pixel.
  RS.slide = function () {
    for (const paint of RS.painters) paint();
    const [start, end] = across();
    for (const [el, gd] of RS.plots()) {
      if (!visible.has(el.dataset.panel)) continue;
      const [a, b] = gd._fullLayout.xaxis.range.map(time), pixel = (end - start) / Math.max(1, gd._fullLayout.xaxis._length);
      if (gd.stale || Math.abs(a - start) >= pixel || Math.abs(b - end) >= pixel) {
        gd.stale = false;
        window.Plotly.relayout(gd, { "xaxis.range": [start, end] });
      }
    }
  };

  function zoomed(gd, change) {
    // Only a drag sets `range[0]`; calls of this code set `xaxis.range`.
    if (change["xaxis.range[0]"] === undefined) return;
    RS.zoom = gd._fullLayout.xaxis.range.map((x) => RS.toMs(time(x)));
    RS.by("app").dataset.zoom = "on";
    const [from, to] = RS.range(), wide = to - from > 86400000;
    RS.by("unzoom").textContent = `${RS.format.clock(from, wide)} – ${RS.format.clock(to, wide)} · Reset zoom`;
    RS.slide();
    RS.remember();
    // Texts are as of the end of the zoom.
    RS.news();
  }

  RS.unzoom = function () {
    const zoomed = RS.zoom !== null;
    RS.zoom = null;
    RS.by("app").dataset.zoom = "";
    if (RS.boot && RS.chartsReady()) RS.slide();
    if (zoomed) RS.news();
  };

  RS.drew = function (gd) {
    gd.on("plotly_relayout", (change) => zoomed(gd, change));
    gd.on("plotly_doubleclick", RS.reset);
  };

  // Binds what is not bound yet, and goes on with what could not be drawn.
  RS.bind = function () {
    seer ||= new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) visible.add(entry.target.dataset.panel);
        else visible.delete(entry.target.dataset.panel);
      if (RS.boot && !RS.boot.error && RS.chartsReady()) RS.slide();
    });
    for (const [el, gd] of RS.charts()) {
      if (gd.bound) continue;
      gd.bound = true;
      const area = el.querySelector(".plot");
      RS.dress(el, gd);
      area.addEventListener("pointermove", (event) => hover(gd, event));
      // A finger leaves the chart when it is lifted: what it read stays until the next tap.
      area.addEventListener("pointerdown", (event) => event.pointerType === "touch" && hover(gd, event));
      area.addEventListener("pointerleave", (event) => event.pointerType === "touch" || RS.leave());
      seer.observe(el);
    }
    RS.drawOn();
  };

  document.addEventListener("pointerdown", (event) => event.pointerType === "touch" && !event.target.closest(".plot") && RS.leave());

  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle;
      else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }

  function hover(source, event) {
    if (!source._fullLayout) return;
    const axis = source._fullLayout.xaxis, left = source.getBoundingClientRect().left;
    const x = axis.p2l(event.clientX - left - axis._offset), [start, end] = axis.range.map(time);
    if (x < start || x > end) return RS.leave();
    RS.cross(RS.toMs(x), axis._length);
  }

  // The cross-hair of all panels at a time (local ms).
  RS.cross = function (ms, pixels) {
    RS.hovering = true;
    const [start, end] = RS.range(), perPixel = (end - start) / pixels;
    const mark = [RS.verdictAt, RS.markAt, RS.eventAt].map((at) => at(ms, perPixel)).filter(Boolean).join(" · ");
    for (const [el, gd] of RS.plots()) show(el, gd, ms, mark);
  };

  function show(el, gd, ms, mark) {
    const x = RS.toX(ms), axis = gd._fullLayout.xaxis, cross = el.querySelector(".cross"), values = {};
    if (el.dataset.state !== "data" && el.dataset.state !== "stale") return;
    cross.style.transform = `translateX(${axis._offset + axis.l2p(x)}px)`;
    cross.dataset.on = "1";
    for (const trace of gd.data) if (trace.x.length && !String(trace.meta).endsWith(":band")) values[trace.meta] = trace.y[nearest(trace.x, x)];
    // The legend keeps its height: a longer value must not push down what stands below.
    const shown = RS.all("[data-slot]", el), legend = el.querySelector(".legend");
    if (legend && !legend.style.height) legend.style.height = legend.offsetHeight + "px";
    const total = shown.reduce((sum, b) => sum + (values[b.dataset.slot] || 0), 0);
    for (const b of shown) {
      const value = values[b.dataset.slot];
      if (value === undefined) continue;
      b.textContent = el.dataset.share && total ? RS.format.text(value === null ? null : value / total, "ratio") : RS.format.text(value, el.dataset.unit);
    }
    el.querySelector(".at").textContent = RS.stepWords(ms) + RS.format.clock(ms, RS.boot.end - RS.boot.start > 86400) + (mark ? " · " + mark : "");
  }

  RS.nearest = nearest;
  RS.leave = function () {
    if (!RS.hovering) return;
    RS.hovering = false;
    for (const cross of RS.all(".cross, .at")) cross.dataset.on = "", (cross.textContent = "");
    for (const b of RS.all("[data-slot]")) b.textContent = RS.view[b.dataset.t] ?? "";
    for (const legend of RS.all(".legend")) legend.style.height = "";
  };
})(window.RS);
