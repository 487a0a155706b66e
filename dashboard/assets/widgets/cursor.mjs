// The time under the cursor: a line on all charts and in the lane of events, values in the legends, and one tooltip.
import { clockOf } from "../core/cells.mjs";
import { all, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { state } from "../core/state.mjs";
import { plots, range, time } from "./chart.mjs";
import { units } from "./chart_data.mjs";
import { alertsAt, laneAt, laneOf, updateAt } from "./events.mjs";
import { newest } from "./legend.mjs";
import { nearest } from "./series.mjs";
import { across, stepAt, toMs, toX, widthX } from "./step_axis.mjs";

// Distance of the tooltip from the cursor, pixels; how long after its end a line still has its last value, ms.
const OFF = 14, AFTER = 60000;
let tip = null;

document.addEventListener("pointerdown", (event) => event.pointerType === "touch" && !event.target.closest(".plot, .lane-rows, [data-draw]") && leave());

// A tooltip with a head, a second line and rows, at a point of the window; it never covers that point.
function floating(head, rows, x, y) {
  tip ||= document.body.appendChild(Object.assign(make("div", "", "tooltip"), { ariaHidden: "true" }));
  tip.replaceChildren(...head.filter(Boolean).map((words, i) => make(i ? "p" : "b", words)), ...rows);
  tip.dataset.on = "1";
  const { offsetWidth: wide, offsetHeight: tall } = tip, { innerWidth, innerHeight } = window;
  const left = x + OFF + wide < innerWidth ? x + OFF : Math.max(4, x - OFF - wide), top = y + OFF + tall < innerHeight ? y + OFF : Math.max(4, y - OFF - tall);
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}
export const tell = (event, words) => (words ? floating(words.slice(0, 1), words.slice(1).map((one) => make("p", one)), event.clientX, event.clientY) : leave());

// Binds a chart's area or the lane of events: a mouse reads while it is on it, a finger until the next tap elsewhere.
export function reads(area, look) {
  if (area.looked) return;
  area.looked = true;
  area.addEventListener("pointermove", look);
  area.addEventListener("pointerdown", (event) => event.pointerType === "touch" && look(event));
  area.addEventListener("pointerleave", (event) => event.pointerType === "touch" || leave());
}

export function hover(el, gd, event) {
  if (!gd._fullLayout) return;
  const axis = gd._fullLayout.xaxis, x = axis.p2l(event.clientX - gd.getBoundingClientRect().left - axis._offset), [start, end] = axis.range.map(time);
  if (x < start || x > end) return leave();
  cross(toMs(x), el, event.clientX, event.clientY);
}

// Which step and version: "step 1,180 · v412", as far as they are known.
function where(ms) {
  const step = stepAt(ms), version = updateAt(ms);
  return [step !== null && `step ${step.toLocaleString("en")}`, version !== null && `v${version.toLocaleString("en")}`].filter(Boolean).join(" · ");
}

// The cross-hair at a time (local ms), read on a panel or on the lane; returns the tooltip's text.
export function cross(ms, el, x, y) {
  state.hovering = true;
  const [from, to] = across(...range()), lane = laneOf(), mine = new Map();
  for (const [panel, gd] of plots()) {
    const values = valuesAt(gd, toX(ms)), { _offset, _length } = gd._fullLayout.xaxis;
    if (panel.dataset.state !== "data" && panel.dataset.state !== "stale") continue;
    line(panel, _offset + (_length * (toX(ms) - from)) / (to - from));
    legend(panel, values);
    if (panel === el) for (const [slot, value] of Object.entries(values)) mine.set(slot, value);
  }
  if (lane) line(lane, (lane.querySelector(".lane-rows").clientWidth * (toX(ms) - from)) / (to - from));
  const head = [clockOf((ms - state.tz) / 1000, 19), where(ms)], perPixel = (range()[1] - range()[0]) / Math.max(1, el.clientWidth);
  floating(head, el === lane ? laneAt(ms).map(([words, colour]) => row(words, "", colour && swatch(colour))) : [...rows(el, mine), ...alertsAt(el, ms, perPixel).map((words) => row(words, ""))], x, y);
  return Array.from(tip.children, (child) => Array.from(child.children.length ? child.children : [child], (part) => part.textContent).filter(Boolean).join(" ")).filter(Boolean).join(", ");
}

function line(el, x) {
  const cross = el.querySelector(".cross");
  cross.style.transform = `translateX(${x}px)`;
  cross.dataset.on = "1";
}

function valuesAt(gd, x) {
  const found = {}, after = widthX(AFTER);
  for (const trace of gd.data) {
    const xs = trace.x, n = xs.length, apart = Math.max(after, n > 1 ? (2 * (xs[n - 1] - xs[0])) / (n - 1) : 0);
    if (!n || /:(band|fill|lo|hi)$/.test(trace.meta)) continue;
    found[trace.meta] = x < xs[0] - apart || x > xs[n - 1] + apart ? null : trace.y[nearest(xs, x)];
  }
  return found;
}

function legend(el, values) {
  const shown = all("[data-slot]", el), total = el.dataset.share ? shown.reduce((sum, b) => sum + (values[b.dataset.slot] || 0), 0) : 0;
  for (const b of shown) {
    const value = values[b.dataset.slot];
    if (value === undefined) continue;
    if (total && value !== null) values[b.dataset.slot] = value / total;
    b.textContent = format.text(values[b.dataset.slot], total ? "ratio" : el.dataset.unit);
  }
}

// Of a verdict in its colour (`assets/page-verdict.css`).
function swatch(colour) {
  const mark = make("i", "", "swatch verdict");
  mark.dataset.state = colour;
  return mark;
}
function row(words, value, mark) {
  const p = make("p", "", "of");
  p.append(...(mark ? [mark] : []), make("span", words), make("b", value));
  return p;
}

// Every line of the chart that is drawn, in the legend's order.
function rows(el, values) {
  const words = units(el)[1];
  return all(".legend .item", el).map((item) => {
    const slot = item.querySelector("[data-slot]")?.dataset.slot, value = values.get(slot);
    return value === undefined ? null : row(item.querySelector("span").textContent, value === null ? "–" : words(value), item.querySelector(".swatch").cloneNode());
  }).filter(Boolean);
}

export function leave() {
  if (tip) delete tip.dataset.on, tip.replaceChildren();
  if (!state.hovering) return;
  state.hovering = false;
  for (const cross of all(".cross[data-on]")) cross.dataset.on = "";
  newest();
}
