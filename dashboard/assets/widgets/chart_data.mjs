// The data of a chart, for its text summary, its table, its CSV and its picture.
import { moments } from "../core/address.mjs";
import { all, by, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { reload } from "../core/live.mjs";
import { query } from "../core/nav.mjs";
import { state } from "../core/state.mjs";
import { charts, chartsReady, graphOf, plotly, range, time } from "./chart.mjs";
import { toast } from "./chart_menu.mjs";
import { alertsOf } from "./events.mjs";
import { lineOf } from "./legend.mjs";
import { across, byStep, toMs, toX } from "./step_axis.mjs";

const EVERY = 10000, AHEAD = 0.25, PLACE = { 900: "15 minutes", 3600: "hour", 21600: "6 hours", 86400: "24 hours", 604800: "7 days" };
const unit = (el) => el.dataset.units || "";
export const titleOf = (el) => el.querySelector("h2").textContent;
const known = (y) => y !== null && y !== undefined && isFinite(y);

// The lines of a chart that are drawn: [{ label, trace, x, y }, ...] within the time shown; what lies behind them last.
export function linesOf(el) {
  const gd = graphOf(el), [from, to] = across(...range()), found = [];
  for (const trace of (gd && gd.data) || []) {
    const [slot, rest] = String(trace.meta).split(":");
    if (rest && (slot !== "over" || !state.boot.behind)) continue;
    const own = rest || slot, name = lineOf(own)?.label ?? own;
    const at = trace.x.map((_, i) => i).filter((i) => time(trace.x[i]) >= from && time(trace.x[i]) <= to);
    const label = rest ? `${name}, ${state.boot.behind[0]}` : name, x = at.map((i) => time(trace.x[i])), y = at.map((i) => trace.y[i]);
    found.push({ label, slot: own, behind: Boolean(rest), trace, x, y });
  }
  return found.sort((a, b) => a.behind - b.behind);
}

// One row per point of time: [[local ms, value or undefined of each line], ...], the oldest first.
export function rowsOf(lines) {
  const rows = new Map();
  lines.forEach((line, i) => line.x.forEach((x, j) => {
    if (!rows.has(x)) rows.set(x, new Array(lines.length));
    rows.get(x)[i] = line.y[j];
  }));
  return Array.from(rows.entries()).sort((a, b) => a[0] - b[0]).map(([x, values]) => [toMs(x), ...values]);
}

export const valueOf = (el, value) => (known(value) ? format.text(value, el.dataset.unit) : "–");

// Of a panel in percent the share of the whole, as in its header.
function spoken(el, lines) {
  if (!el.dataset.share) return lines.map((line) => line.y);
  const whole = new Map();
  for (const line of lines) line.x.forEach((x, i) => whole.set(x, (whole.get(x) || 0) + (line.y[i] || 0)));
  return lines.map((line) => line.y.map((y, i) => (known(y) && whole.get(line.x[i]) ? y / whole.get(line.x[i]) : null)));
}

// [a value, a value with its unit]: "between 120 and 640 samples".
export function units(el) {
  const own = el.dataset.share ? "ratio" : unit(el), self = ["ratio", "seconds", "reward"].includes(own);
  const bare = (value) => format.text(value, self && own !== "reward" ? own : "");
  return [bare, (value) => bare(value) + (self || !own ? "" : " " + own)];
}

function trend(ys) {
  const part = Math.max(1, Math.floor(ys.length / 4)), mean = (some) => some.reduce((sum, y) => sum + y, 0) / some.length;
  const first = mean(ys.slice(0, part)), last = mean(ys.slice(-part)), size = Math.max(Math.abs(first), Math.abs(last));
  return Math.abs(last - first) <= 0.1 * size ? "steady" : last > first ? "rising" : "falling";
}

// The time range as text.
function over() {
  const [start, end] = range(), seconds = Math.round((end - start) / 1000);
  if (state.boot.follow && !state.zoom) return `over the last ${PLACE[seconds] || format.span(seconds)}`;
  const wide = seconds > 86400, clock = (ms) => (wide ? format.clock(ms, true) : format.clock(ms).slice(0, 5));
  return `from ${clock(start)} to ${clock(end)}`;
}

function lineWords(el, line, values, first) {
  const ys = values.filter(known), last = values[values.length - 1], [bare, whole] = units(el);
  if (!ys.length) return "";
  // The legend's value is the newest; the last point is the mean of its stretch of time.
  const legend = el.querySelector(`[data-slot="${line.slot}"]`), shown = state.boot.follow && !state.zoom && legend ? legend.textContent : "";
  const now = known(last) ? `now ${shown || whole(last)}` : "no value now", low = Math.min(...ys), high = Math.max(...ys);
  const between = bare(low) === bare(high) ? `always ${whole(low)}` : `between ${bare(low)} and ${whole(high)}`;
  return [now, first ? `${between} ${over()}` : between, trend(ys)].join(", ");
}

// "Queue depth: now 312 samples, between 120 and 640 samples over the last hour, rising".
export function summaryOf(el) {
  const lines = linesOf(el).filter((line) => !line.behind), values = spoken(el, lines), found = [], title = titleOf(el);
  lines.forEach((line, i) => {
    const words = lineWords(el, line, values[i], !found.length), named = lines.length > 1 && line.label !== "now";
    if (words) found.push(named ? `${line.label} ${words}` : words);
  });
  return `${title}: ` + (found.length ? found.join("; ") : `no data. ${el.querySelector(".why p").textContent}`);
}

// The summary is read aloud when a chart has the focus; it is updated only where it has changed.
export function summarise() {
  if (!state.boot || state.boot.error || document.hidden || !chartsReady()) return;
  for (const [el] of charts()) {
    const where = by("sum-" + el.dataset.panel), words = where && summaryOf(el);
    if (where && where.textContent !== words) where.textContent = words;
  }
}
document.addEventListener("zoomed", summarise);
setInterval(() => {
  summarise();
  // What lies behind the lines is read with a load, and so far ahead (`dashboard/charts/comparison.py`). A window that
  // is as long as the run moves away from its start until the next load.
  const b = state.boot;
  if (b && (b.behind || b.grows) && b.follow && b.now - b.end > AHEAD * (b.end - b.start)) reload();
}, EVERY);

// ---- out of the browser

const iso = (ms) => new Date(ms - state.tz).toISOString();
// A spreadsheet takes what begins like this for a formula.
const cell = (words) => `"${(/^[=+\-@\t\r]/.test(words) ? "'" + words : words).replace(/"/g, '""')}"`;
export function csvOf(el) {
  const lines = linesOf(el), own = unit(el), steps = byStep();
  const head = ["time", ...(steps ? ["step"] : []), ...lines.map((line) => cell(own ? `${line.label} (${own})` : line.label))];
  const row = ([ms, ...values]) => [iso(ms), ...(steps ? [Math.ceil(toX(ms) - 1e-6)] : []), ...values.map((y) => (known(y) ? y : ""))];
  return [head, ...rowsOf(lines).map(row)].map((parts) => parts.join(",")).join("\r\n") + "\r\n";
}

export function save(blob, el, ending) {
  const link = make("a"), at = new Date(range()[1] - state.tz).toISOString().slice(0, 16).replace(/[-:]/g, "");
  link.href = URL.createObjectURL(blob);
  link.download = `${state.boot.run}-${el.dataset.panel}-${at}`.replace(/[^\w.-]+/g, "_").slice(0, 120) + ending;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
export const saveCsv = (el) => save(new Blob([csvOf(el)], { type: "text/csv" }), el, ".csv");

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
// Plotly takes text for a little HTML.
const plain = (words) => words.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function alertShapes(el) {
  return alertsOf(el).map(({ ms, kind }) => ({
    type: "line", yref: "paper", y0: 0, y1: 1, x0: toX(ms), x1: toX(ms), opacity: 0.8,
    line: { color: token(kind === "fired" ? "critical" : kind === "changed" ? "muted" : "watch"), width: 1 },
  }));
}

// Of the times on the axis: a picture is looked at elsewhere.
export function zone() {
  const minutes = Math.abs(state.tz) / 60000, part = (n) => String(Math.floor(n)).padStart(2, "0");
  return "UTC" + (minutes ? `${state.tz < 0 ? "−" : "+"}${part(minutes / 60)}:${part(minutes % 60)}` : "");
}

function picture(el, gd) {
  const lines = linesOf(el), names = new Map(lines.map((line) => [line.trace, line.label])), grid = { gridcolor: token("grid"), color: token("muted") };
  const data = gd.data.map((trace) => ({ ...trace, name: plain(names.get(trace) || ""), showlegend: names.has(trace), legendrank: String(trace.meta).startsWith("over:") ? 2000 : 1000 }));
  const [start, end] = range().map((ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ")), when = `${start} – ${end} ${zone()}`;
  const limits = all(".limit", el).map((one) => one.textContent).filter(Boolean);
  const title = `${plain(titleOf(el))} · ${plain(el.querySelector(".unit").textContent)}<br><sub>${[state.boot.run, when, ...limits].map(plain).join(" · ")}</sub>`;
  const layout = { ...gd.layout, autosize: false, width: 1200, height: 600, paper_bgcolor: token("card"), plot_bgcolor: token("card"), showlegend: true,
    font: { family: "Inter, system-ui, sans-serif", size: 15, color: token("muted") }, title: { text: title, x: 0.02, xanchor: "left", font: { size: 20, color: token("ink") } },
    legend: { orientation: "h", y: -0.12 }, margin: { l: 70, r: 24, t: 90, b: 80 }, xaxis: { ...gd.layout.xaxis, ...grid, range: across(...range()) },
    yaxis: { ...gd.layout.yaxis, ...grid }, shapes: [...(gd.layout.shapes || []), ...alertShapes(el)] };
  return { data, layout };
}

export const pngOf = (el) => plotly().then(() => window.Plotly.toImage(picture(el, graphOf(el)), { format: "png", width: 1200, height: 600, scale: 2 }));
export async function savePng(el) {
  const url = await pngOf(el).catch(() => "");
  if (!url) return toast("No picture: plotly.js could not be loaded");
  const bytes = atob(url.split(",")[1]);
  save(new Blob([Uint8Array.from(bytes, (c) => c.charCodeAt(0))], { type: "image/png" }), el, ".png");
}

// The same view: absolute times, and this chart in full screen.
export const linkOf = (el) => location.origin + location.pathname + query({ ...moments(), panel: el.dataset.panel });
