// Marks on every chart over time, and what they mean: weight updates (`dashboard/charts/weight_updates.py`) as thin vertical
// lines, as ticks where they are many; change points as lines, always; restarts and alerts that began to fire
// (`dashboard/charts/event_markers.py`).
import { all, make } from "../core/dom.mjs";
import { drawers, painters, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { near, over, repaint, svg } from "./svg.mjs";
import { turns } from "./verdicts.mjs";

// Most weight updates drawn as full-height lines; more are short ticks, because lines would hide the data.
const LINES = 12;
// Height of a tick, pixels.
const TICK = 7;
let knownUpdates = null;

// [[local ms, version or null, text of a change point or ""], ...], oldest first.
export function marks() {
  if (knownUpdates) return knownUpdates;
  const found = [], width = state.view["w.width"];
  for (const [key, cell] of Object.entries(state.view)) {
    const [, drift, column] = /^w\.(d\.)?(-?\d+)$/.exec(key) || [];
    if (column) for (const [after, what] of cell) found.push([1000 * (Number(column) * width + after) + state.tz, drift ? null : what, drift ? what : ""]);
  }
  return (knownUpdates = found.sort((a, b) => a[0] - b[0]));
}

// Whole pixels, so that a window that moves by less changes nothing.
export function markPath(x, top, bottom, start, end) {
  const shown = marks().filter(([at]) => at >= start && at <= end), from = shown.length > LINES ? bottom - TICK : top;
  return shown.map(([at, , words]) => `M${Math.round(x(at)) + 0.5} ${words ? top : from}V${bottom}`).join("");
}

// What was published at this time, within a few pixels.
export function markAt(ms, perPixel) {
  const best = near(marks(), ms, perPixel);
  return best ? best[2] || (best[1] === null ? "weights published" : `v${best[1]} published`) : "";
}

function paintUpdates() {
  if (state.boot && !state.boot.error && state.view["w.width"]) over("over", "marks", markPath);
}

drawers.push((cells) => {
  if (!Object.keys(cells).some((key) => key.startsWith("w."))) return;
  knownUpdates = null;
  for (const painter of painters) painter();
});
repaint(paintUpdates);

// Marks closer than this many pixels are drawn as one.
const APART = 8;
// Half the width of a glyph, pixels.
const HALF = 4;
// Length of an alert's stem, pixels: full-height lines of many alerts would hide the data.
const STEM = 14;
let knownEvents = null;

// { r: [[local ms, text], ...], a: [[local ms, name, severity], ...] }, oldest first.
function events() {
  if (knownEvents) return knownEvents;
  const found = { r: [], a: [] }, width = state.view["w.width"];
  for (const [key, cell] of Object.entries(state.view)) {
    const [, kind, column] = /^w\.([ar])\.(-?\d+)$/.exec(key) || [];
    if (kind) for (const [after, ...words] of cell) found[kind].push([1000 * (Number(column) * width + after) + state.tz, ...words]);
  }
  for (const rows of Object.values(found)) rows.sort((a, b) => a[0] - b[0]);
  return (knownEvents = found);
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
// Name, words, rows, glyph, length of the stem.
/** @type {[string, string, () => any[], (x: number, y: number) => string, number][]} */
const LAYERS = [
  ["restarted", "a restart", () => events().r, diamond, Infinity],
  ["warned", "an alert fired", () => events().a.filter((row) => !grave(row)), triangle, STEM],
  ["fired", "a critical alert fired", () => events().a.filter(grave), triangle, STEM],
];

function paintEvents() {
  if (!state.boot || state.boot.error || !state.view["w.width"]) return;
  for (const [name, , rows, glyph, stem] of LAYERS)
    // A layer without marks is not created.
    if (rows().length || document.querySelector(`.${name}`)) over("events-" + name, name, path(rows(), glyph, stem));
  legend();
}

// What is near a time, within a few pixels: all of it, for marks that are drawn as one.
export function eventAt(ms, perPixel) {
  const near = ([at]) => Math.abs(at - ms) <= (APART / 2) * perPixel;
  const words = [...events().r.filter(near).map(([, what]) => what), ...events().a.filter(near).map(([, name]) => `${name} fired`)];
  return words.length > 3 ? words.slice(0, 3).join(" · ") + ` and ${words.length - 3} more` : words.join(" · ");
}

// For pictures: [[local ms, what], ...] of everything that is marked.
export const allMarks = () => [...events().r.map(([at]) => [at, "restarted"]), ...events().a.map((row) => [row[0], grave(row) ? "fired" : "warned"])];

function kinds(noted) {
  const [start, end] = range(), inside = (row) => row[0] >= start && row[0] <= end, found = [];
  const some = (name, words, rows) => rows.some(inside) && found.push([name, words]);
  // Pages with a text on weight updates show their mark there.
  if (!noted) some("published", "weight update", marks().filter((row) => !row[2]));
  some("drifted", "behaviour or source changed", marks().filter((row) => row[2]));
  some("turned", "verdict changed", turns());
  for (const [name, words, rows] of LAYERS) some(name, words.replace(/^an? /, ""), rows());
  return found;
}

function legend() {
  const place = document.querySelector(`[data-place="${state.boot.key}"]`), panels = all("[data-panel]", place);
  if (!panels.length) return;
  const noted = place.querySelector(".marks-note:not(:empty)"), found = kinds(noted), said = found.map(([name]) => name).join(" ");
  let where = place.querySelector(".marks-legend");
  if (!where) {
    where = make("p", "", "note marks-legend");
    (place.querySelector(".marks-note") || panels[panels.length - 1]).after(where);
  }
  if (where.dataset.said === said) return;
  where.dataset.said = said;
  where.replaceChildren(...found.map(([name, words]) => item(name, words)));
}

function item(name, words) {
  const span = make("span", "", "item"), el = svg("svg", { width: 12, height: 14, "aria-hidden": "true" });
  const layer = LAYERS.find(([one]) => one === name), glyph = layer ? layer[3](6.5, 1) : "";
  el.append(svg("path", { d: `M6.5 1V13${glyph}`, class: { published: "marks", drifted: "marks" }[name] || name }));
  span.append(el, words);
  return span;
}

drawers.push((cells) => {
  if (!Object.keys(cells).some((key) => key.startsWith("w."))) return;
  knownEvents = null;
  paintEvents();
});
repaint(paintEvents);
