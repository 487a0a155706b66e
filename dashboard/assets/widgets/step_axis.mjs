// Charts over steps (`?axis=step`, `dashboard/pages/trainer/steps.py`): x is the step in progress. A step's number is at its
// end; within a step x is linear in time. The rest of the page uses times (local ms).
import { reload } from "../core/live.mjs";
import { drawers, state } from "../core/state.mjs";
import { range } from "./chart.mjs";

let known = null, shown = false;

// [{ begin, end, low, step }, ...], the oldest first: from `begin` to `end` x went from `low` to `step`.
function knots() {
  if (known) return known;
  const rows = [], width = state.view["step_axis.width"];
  for (const [key, cell] of Object.entries(state.view)) {
    const [, column] = /^step_axis\.(-?\d+)$/.exec(key) || [];
    if (column) for (const [after, step, took, low] of cell) rows.push({ end: 1000 * (Number(column) * width + after) + state.tz, step, took, low });
  }
  rows.sort((a, b) => a.end - b.end);
  rows.forEach((row, i) => {
    const before = rows[i - 1];
    row.begin = row.took !== undefined ? row.end - 1000 * row.took : before ? before.end : row.end;
    row.low ??= before ? before.step : row.step;
  });
  return (known = rows.filter((row) => row.end > row.begin));
}

const on = () => Boolean(state.boot && state.boot.stepped && knots().length);
export const byStep = () => shown;

// The first row whose `key` is not below a value; knots ascend in time and in steps.
function first(rows, key, value) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][key] < value) low = middle + 1;
    else high = middle;
  }
  return rows[low];
}

const pace = (one) => (one.end - one.begin) / (one.step - one.low);
// The step in progress ends just below its number, however long it takes.
const IN_PROGRESS = 0.999;

export function toX(ms) {
  const rows = shown ? knots() : [];
  if (!rows.length) return ms;
  const one = first(rows, "end", ms), last = rows[rows.length - 1];
  if (!one) return last.step + Math.min(IN_PROGRESS, (ms - last.end) / pace(last));
  return ms <= one.begin ? one.low : one.low + (ms - one.begin) / pace(one);
}

export function toMs(x) {
  const rows = shown ? knots() : [];
  if (!rows.length) return x;
  const one = first(rows, "step", x), last = rows[rows.length - 1];
  if (!one) return last.end + (x - last.step) * pace(last);
  return x <= one.low ? one.begin : one.begin + (x - one.low) * pace(one);
}

// What a time covers; within one step an axis would have no width.
export function across(start, end) {
  const from = toX(start), to = toX(end);
  return shown && to - from < 1e-3 ? [from - 0.5, to + 0.5] : [from, to];
}

export function widthX(ms) {
  if (!shown) return ms;
  const [start, end] = range(), [from, to] = across(start, end);
  return (ms * (to - from)) / (end - start);
}

// A signal with one value per step stands at the step itself.
export const slotX = (ms, slot) => (shown && state.boot.stepped.includes(slot) ? Math.ceil(toX(ms) - 1e-6) : toX(ms));

// The step in progress at a time, also in charts over time; null where it is not known.
export function stepAt(ms) {
  const rows = knots(), one = first(rows, "end", ms), last = rows[rows.length - 1];
  if (!last || (one && ms < one.begin)) return null;
  return one ? one.step : last.step + 1;
}

// Before the first step that is known, and of work that a restart has lost.
function placeless(ms) {
  const one = first(knots(), "end", ms);
  return one !== undefined && ms < one.begin;
}

function placed(trace) {
  const [first_, second] = String(trace.meta).split(":"), slot = first_ === "over" ? second : first_;
  const kept = trace.x.map((_, i) => i).filter((i) => !placeless(trace.x[i]));
  return { ...trace, x: kept.map((i) => slotX(trace.x[i], slot)), y: kept.map((i) => trace.y[i]) };
}

// A figure of the server's, over time, as it is shown.
export function overSteps(figure) {
  shown = on();
  if (!shown) return figure;
  const xaxis = { ...figure.layout.xaxis, type: "linear", tickformat: ",.1~f", tickprefix: "step ", showtickprefix: "first", range: across(...figure.layout.xaxis.range) };
  delete xaxis.tickformatstops;
  return { data: figure.data.map(placed), layout: { ...figure.layout, xaxis } };
}

const newest = () => (knots().length ? knots()[knots().length - 1].step : -1);
drawers.push((cells) => {
  if (!Object.keys(cells).some((key) => key.startsWith("step_axis."))) return;
  const before = known ? newest() : -1;
  known = null;
  // With a load the figures come next: what is painted before them already goes by it.
  if (state.boot && cells === state.boot.view) shown = on();
  // The first step of a run, or steps that a restart does once more: points have other places now.
  if (state.boot && state.boot.stepped && cells !== state.boot.view && (on() !== shown || newest() < before)) reload();
});
