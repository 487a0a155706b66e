// Plotly's part of a chart: fetched once, drawn when it comes near the screen. Drawing one costs more than the rest of a
// page, and most of a page's charts are below the fold; until then a chart is its numbers alone (`data`, `layout`).
(function (RS) {
  "use strict";
  const { by, make } = RS;
  const CONFIG = { displayModeBar: false, showTips: false, doubleClick: false, responsive: false, scrollZoom: false };
  // Distance from the screen at which a chart is drawn: less than half a screen.
  const NEAR = "300px";
  const config = JSON.parse(by("_dash-config").textContent), base = config.requests_pathname_prefix;
  const waiting = new Set();
  const FIRST = 1000, LAST = 60000;
  let arrives = null, drawing = false, near = null, sized = null, wait = FIRST, again = 0;

  // Resolved when `window.Plotly` is available. A failed load is retried with a growing delay; an incomplete file or a
  // proxy's error page counts as a failure.
  function plotly() {
    if (!arrives && performance.now() < again) return Promise.reject(new Error("no plotly.js"));
    return (arrives ||= new Promise((done, lost) => {
      const script = Object.assign(make("script"), { src: `${base}_dash-component-suites/plotly/package_data/plotly.min.js` });
      const over = () => {
        if (window.Plotly) return done((again = 0));
        arrives = null;
        again = performance.now() + wait;
        wait = Math.min(LAST, 2 * wait);
        script.remove();
        lost(new Error("no plotly.js"));
      };
      script.addEventListener("load", over);
      script.addEventListener("error", over);
      document.head.append(script);
    }));
  }
  RS.plotly = plotly;
  // Pages with charts need it first of all; the others may never.
  if (!document.documentElement.dataset.plain.split(" ").includes(location.pathname.slice(base.length))) plotly().catch(() => {});

  // The element that Plotly draws into; `_fullLayout` is there once it has.
  RS.graphOf = (el) => el.querySelector(".chart");
  const drawn = (gd) => Boolean(gd && gd._fullLayout);
  // Without Plotly the rest of the page keeps working.
  const settled = (gd) => drawn(gd) || (gd && (gd.far || again > 0));
  // Of the page that is shown: the others keep their charts, and get new ones when they come back.
  const panels = () => RS.all(`[data-place="${RS.boot ? RS.boot.key : ""}"] [data-panel]`);
  RS.charts = () => panels().map((el) => [el, RS.graphOf(el)]).filter(([, gd]) => gd && gd.data);
  RS.plots = () => RS.charts().filter(([, gd]) => drawn(gd));
  RS.chartsReady = () => panels().every((el) => settled(RS.graphOf(el)));

  // A figure of the server's for a panel: at once if its chart is drawn, else when it is near.
  RS.figure = function (key, { data, layout }) {
    const where = by("graph-" + key), gd = where.querySelector(".chart") || where.appendChild(make("div", "", "chart"));
    RS.bands(data);
    RS.limited({ data, layout });
    if (drawn(gd)) return void window.Plotly.react(gd, data, layout, CONFIG);
    Object.assign(gd, { data, layout });
    if (gd.watched) return;
    gd.watched = true;
    near ||= new IntersectionObserver(seen, { rootMargin: NEAR });
    near.observe(gd);
  };

  function seen(entries) {
    for (const { target, isIntersecting } of entries) {
      target.far = !isIntersecting;
      if (isIntersecting && !drawn(target)) waiting.add(target);
    }
    next();
  }

  // One by one: the first is on the screen while the second is drawn.
  function next() {
    if (drawing || !waiting.size) return;
    drawing = true;
    plotly().then(() => setTimeout(() => {
      const [gd] = waiting;
      drawing = false;
      if (gd) RS.draw(gd);
      next();
    }), () => (drawing = false));
  }
  RS.drawOn = next;

  // Draws a chart at once: to view, print or navigate it.
  RS.draw = function (gd) {
    if (!window.Plotly) return;
    waiting.delete(gd);
    // One without a width would be drawn for another: it is seen again when it has one.
    if (drawn(gd) || !gd.clientWidth) return;
    near.unobserve(gd);
    RS.placed(gd);
    window.Plotly.newPlot(gd, gd.data, gd.layout, CONFIG);
    sized ||= new ResizeObserver((all) => all.forEach(({ target }) => fit(target)));
    sized.observe(gd);
    RS.drew(gd);
    if (!waiting.size) RS.paint();
  };
  RS.drawAll = function () {
    const all = () => RS.charts().forEach(([, gd]) => RS.draw(gd));
    // A page goes to the printer when this is back: it cannot wait for a promise.
    return window.Plotly ? Promise.resolve(all()) : plotly().then(all, () => {});
  };
  window.addEventListener("beforeprint", RS.drawAll);

  // A page that is hidden has no size, and its charts keep theirs.
  function fit(gd) {
    const { width, height } = gd._fullLayout, { clientWidth, clientHeight } = gd;
    if (clientWidth && clientHeight && (clientWidth !== width || clientHeight !== height))
      // What is drawn over a chart has to follow it. One that was hidden meanwhile has kept its size.
      window.Plotly.Plots.resize(gd).then(RS.paint, () => {});
  }
})(window.RS);
