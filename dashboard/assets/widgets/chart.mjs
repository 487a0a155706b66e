// Charts: Plotly's part, new points, the moving window, a zoom and a cross-hair that all panels share.
import { remember, reset, showRange } from "../core/address.mjs";
import { all, by, make } from "../core/dom.mjs";
import { news, reload } from "../core/live.mjs";
import { painters, state } from "../core/state.mjs";
import { bands } from "./bands.mjs";
import { dress } from "./chart_menu.mjs";
import { hover, reads } from "./cursor.mjs";
import { forget, insert } from "./series.mjs";
import { across, slotX, toMs, toX, widthX } from "./step_axis.mjs";

// Plotly is fetched once. A chart is drawn when it comes near the screen, because drawing one costs more than the rest of a
// page, and most charts are below the fold; until then a chart is its numbers alone (`data`, `layout`).
const CONFIG = { displayModeBar: false, showTips: false, doubleClick: false, responsive: false, scrollZoom: false };
// Distance from the screen at which a chart is drawn: less than half a screen.
const NEAR = "300px";
const waiting = new Set();
const FIRST = 1000, LAST = 60000;
let arrives = null, drawing = false, near = null, sized = null, wait = FIRST, again = 0;

// Resolved when `window.Plotly` is available. A failed load is retried with a growing delay; an incomplete file or a
// proxy's error page counts as a failure.
export function plotly() {
  if (!arrives && performance.now() < again) return Promise.reject(new Error("no plotly.js"));
  return (arrives ||= new Promise((done, lost) => {
    const script = Object.assign(make("script"), { src: document.documentElement.dataset.plotly });
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
// Pages with charts need it first of all; the others may never.
if (by("plotly-ahead")) plotly().catch(() => {});

// The element that Plotly draws into; `_fullLayout` is there once it has.
export const graphOf = (el) => el.querySelector(".chart");
const drawn = (gd) => Boolean(gd && gd._fullLayout);
// Without Plotly the rest of the page keeps working.
const settled = (gd) => drawn(gd) || (gd && (gd.far || again > 0));
// Of the page that is shown: the others keep their charts, and get new ones when they come back.
const panels = () => all(`[data-place="${state.boot ? state.boot.key : ""}"] [data-panel]`);
export const charts = () => panels().map((el) => [el, graphOf(el)]).filter(([, gd]) => gd && gd.data);
export const plots = () => charts().filter(([, gd]) => drawn(gd));
export const chartsReady = () => panels().every((el) => settled(graphOf(el)));

// A figure of the server's for a panel: at once if its chart is drawn, else when it is near.
export function figure(key, { data, layout }) {
  const where = by("graph-" + key), gd = where.querySelector(".chart") || where.appendChild(make("div", "", "chart"));
  bands(data);
  limited({ data, layout });
  if (drawn(gd)) return void window.Plotly.react(gd, data, layout, CONFIG);
  Object.assign(gd, { data, layout });
  if (gd.watched) return;
  gd.watched = true;
  near ||= new IntersectionObserver(seen, { rootMargin: NEAR });
  near.observe(gd);
}

function seen(entries) {
  for (const { target, isIntersecting } of entries) {
    target.far = !isIntersecting;
    if (isIntersecting && !drawn(target)) waiting.add(target);
  }
  drawOn();
}

// One by one: the first is on the screen while the second is drawn.
export function drawOn() {
  if (drawing || !waiting.size) return;
  drawing = true;
  plotly().then(() => setTimeout(() => {
    const [gd] = waiting;
    drawing = false;
    if (gd) draw(gd);
    drawOn();
  }), () => (drawing = false));
}

// Draws a chart at once: to view, print or navigate it.
export function draw(gd) {
  if (!window.Plotly) return;
  waiting.delete(gd);
  // One without a width would be drawn for another: it is seen again when it has one.
  if (drawn(gd) || !gd.clientWidth) return;
  near.unobserve(gd);
  placed(gd);
  window.Plotly.newPlot(gd, gd.data, gd.layout, CONFIG);
  sized ||= new ResizeObserver((all) => all.forEach(({ target }) => fit(target)));
  sized.observe(gd);
  drew(gd);
  if (!waiting.size) paint();
}
export function drawAll() {
  const all = () => charts().forEach(([, gd]) => draw(gd));
  // A page goes to the printer when this is back: it cannot wait for a promise.
  return window.Plotly ? Promise.resolve(all()) : plotly().then(all, () => {});
}
window.addEventListener("beforeprint", drawAll);

// A page that is hidden has no size, and its charts keep theirs. A chart that is removed is no longer drawn.
function fit(gd) {
  if (!drawn(gd)) return;
  const { width, height } = gd._fullLayout, { clientWidth, clientHeight } = gd;
  if (clientWidth && clientHeight && (clientWidth !== width || clientHeight !== height))
    // What is drawn over a chart has to follow it. One that was hidden meanwhile has kept its size.
    window.Plotly.Plots.resize(gd).then(paint, () => {});
}

const visible = new Set();
let seer = null;

export const time = (x) => (typeof x === "number" ? x : Date.parse(String(x).replace(" ", "T") + "Z"));
export const loaded = () => {
  const b = state.boot, end = b.follow ? Math.max(b.end, state.boot.now) : b.end;
  return [1000 * (end - (b.end - b.start)) + state.tz, 1000 * end + state.tz];
};
const edges = () => state.zoom || loaded();
export const range = () => edges().map(time);
// The same on the x axis, which may be one of steps (`step_axis.mjs`).
const axisRange = () => across(...range());

// A gap is a gap, but Plotly fills areas across it: there an area is a held zero (`figures._fill`), and a band of
// extremes has no height (`figures._envelope`).
function gap(gd, trace) {
  const [slot, edge] = String(trace.meta).split(":");
  if (edge !== "lo" && edge !== "hi") return edge ? 0 : null;
  const line = gd.data.find((other) => other.meta === slot);
  return line.y.findLast((y) => y !== null) ?? null;
}

function add(gd, found) {
  const oldest = Math.min(axisRange()[0], toX(loaded()[0]));
  // A bucket slightly narrower than requested, because clocks jitter and two ticks must not fall into one.
  const width = widthX(900 * state.boot.bucket);
  for (const trace of gd.data) {
    const [slot, edge] = String(trace.meta).split(":"), [ts, vs] = found[slot] || [[], []];
    if (edge === "band") continue;
    const fresh = ts.map((t, j) => insert(trace, slotX(t + state.tz, slot), vs[j] ?? gap(gd, trace), vs[j] === null ? 0 : width)).filter(Boolean);
    forget(trace, oldest);
    for (const [x, y] of fresh) trace.x.push(x), trace.y.push(y);
  }
  bands(gd.data);
}

// Panels out of sight take the points but are not drawn, because drawing is the expensive part.
export function grow(key, found) {
  const gd = document.querySelector(`#graph-${key} .chart`), seen = visible.has(key) && gd._fullLayout;
  const known = new Set(gd.data.map((trace) => trace.meta));
  const starts = ([slot, [, vs]]) => !known.has(slot) && vs.some((v) => v !== null);
  if (Object.entries(found).some(starts)) return reload();
  add(gd, found);
  placed(gd);
  if (seen) window.Plotly.redraw(gd);
  else gd.stale = true;
}

// While the first answers are short the KV caches hold thousands of them: where a limit is far above what it mostly was
// and is, it runs out of the chart, or all below it would be one flat line. One that merely falls is seen whole.
const FAR = 3, MOSTLY = 0.75;
export function limited({ data, layout }) {
  if (!layout.meta) return;
  const mine = (trace) => String(trace.meta).split(":").includes(layout.meta);
  const of = (keep) => data.filter((trace) => mine(trace) === keep && !String(trace.meta).endsWith(":band")).flatMap((trace) => trace.y).filter((y) => y !== null);
  const limit = of(true).sort((a, b) => a - b), newest = data.find((trace) => trace.meta === layout.meta)?.y.at(-1) ?? 0;
  const most = of(false).reduce((a, b) => Math.max(a, b), Math.max(newest, limit[Math.floor(MOSTLY * limit.length)]));
  layout.yaxis.autorangeoptions = limit.at(-1) > FAR * most ? { clipmax: 1.08 * most } : {};
}

export function placed(gd) {
  Object.assign(gd.layout.xaxis, { range: axisRange(), autorange: false });
  limited(gd);
}
export function paint() {
  if (state.boot && !state.boot.error && chartsReady()) for (const paint of painters) paint();
}

// Panels without new points follow the window once it has moved by a pixel.
export function slide() {
  for (const paint of painters) paint();
  const [start, end] = axisRange();
  for (const [el, gd] of plots()) {
    if (!visible.has(el.dataset.panel)) continue;
    const [a, b] = gd._fullLayout.xaxis.range.map(time), pixel = (end - start) / Math.max(1, gd._fullLayout.xaxis._length);
    if (gd.stale || Math.abs(a - start) >= pixel || Math.abs(b - end) >= pixel) {
      gd.stale = false;
      window.Plotly.relayout(gd, { "xaxis.range": [start, end] });
    }
  }
}

function zoomed(gd, change) {
  // Only a drag sets `range[0]`; calls of this code set `xaxis.range`.
  if (change["xaxis.range[0]"] === undefined) return;
  zoomTo(gd._fullLayout.xaxis.range.map((x) => toMs(time(x))));
}

export function zoomTo(edges) {
  state.zoom = edges;
  showRange();
  slide();
  remember();
  // Texts are as of the end of the zoom.
  news();
  document.dispatchEvent(new Event("zoomed"));
}

export function unzoom() {
  const zoomed = state.zoom !== null;
  state.zoom = null;
  showRange();
  if (state.boot && chartsReady()) slide();
  if (zoomed) news(), document.dispatchEvent(new Event("zoomed"));
}

export function drew(gd) {
  gd.on("plotly_relayout", (change) => zoomed(gd, change));
  gd.on("plotly_doubleclick", reset);
}

// Binds what is not bound yet, and goes on with what could not be drawn.
export function bind() {
  seer ||= new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) visible.add(entry.target.dataset.panel);
      else visible.delete(entry.target.dataset.panel);
    if (state.boot && !state.boot.error && chartsReady()) slide();
  });
  for (const [el, gd] of charts()) {
    if (gd.bound) continue;
    gd.bound = true;
    dress(el);
    reads(el.querySelector(".plot"), (event) => hover(el, gd, event));
    seer.observe(el);
  }
  drawOn();
}

