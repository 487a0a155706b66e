// Trainer: steps as stacked bars, the last step and the median, learning metrics, and a table.
import { list, touched } from "../core/cells.mjs";
import { aged, all, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { drawers, state } from "../core/state.mjs";
import { canvas, line, readable, svg } from "./svg.mjs";

const LETTER = 7, RIGHT = 8, TOP = 8, TALL = 190, AXIS = 20;
// In the order of `dashboard/pages/trainer/steps.py`.
const COLOURS = ["orange", "orange", "blue", "plum", "gold", "teal", "grey"];
const NAMES = ["wait", "generation", "compute", "weight sync", "checkpoint", "evaluation", "other"];
const shown = () => state.boot && state.boot.key === "trainer";
const box = () => document.querySelector("[data-draw=steps]");
const seconds = (value) => format.text(value, "seconds");
// Room for the labels of the axis: one that is cut at its first digit is ten times too small.
let left = 44;
const AT = [0, 0.5, 1];

// ---- steps one by one

function bars() {
  const where = box(), found = list("step_bars.");
  if (!where || !shown()) return;
  where.hidden = !found.length;
  if (!found.length || !where.clientWidth) return;
  const top = nice(Math.max(...found.map(({ phases: parts, seconds: whole }) => Math.max(whole || 0, parts.reduce((sum, part) => sum + (part || 0), 0)))));
  left = Math.max(44, 8 + LETTER * Math.max(...AT.map((part) => seconds(part * top).length)));
  const wide = where.clientWidth - left - RIGHT, slot = wide / found.length, y = (value) => TOP + TALL - (TALL * value) / top;
  const el = canvas(where, TOP + TALL + AXIS, summary(found)), bar = Math.max(1, slot * 0.74);
  el.append(axis(top, y, wide));
  found.forEach((step, i) => el.append(...one(step, left + i * slot + (slot - bar) / 2, bar, y)));
  el.append(...ticks(found, slot), ...lives(found, slot), ...middle(y, wide));
  where.look = { slot, found };
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((step) => step * size).find((step) => step >= value) || value || 1;
}

function axis(top, y, wide) {
  const g = svg("g", { class: "axes" });
  for (const part of AT) {
    g.append(svg("line", { x1: left, x2: left + wide, y1: y(part * top), y2: y(part * top) }));
    g.append(svg("text", { x: left - 6, y: y(part * top) + 4, "text-anchor": "end" }, seconds(part * top)));
  }
  return g;
}

function one({ phases: parts, seconds: whole }, x, wide, y) {
  let base = 0;
  const found = [];
  parts.forEach((part, i) => {
    if (!part) return;
    // A thin gap between the parts shows their edges to colour-blind readers.
    const high = y(base) - y(base + part);
    found.push(svg("rect", { x: x.toFixed(1), y: y(base + part).toFixed(1), width: wide.toFixed(1), height: Math.max(0.6, high - (high > 3 ? 0.8 : 0)).toFixed(1), class: "f-" + COLOURS[i] }));
    base += part;
  });
  // A step without reported phases shows its total alone.
  if (!base && whole) found.push(svg("rect", { x, y: y(whole), width: wide, height: y(0) - y(whole), class: "f-none" }));
  return found;
}

function ticks(found, slot) {
  const every = Math.max(1, Math.ceil(58 / slot)), words = [];
  for (let i = found.length - 1; i >= 0; i -= every) {
    const x = left + (i + 0.5) * slot;
    if (x < left + 12) break;
    words.unshift(svg("text", { x: Math.min(x, left + found.length * slot - 12), y: TOP + TALL + 15, "text-anchor": "middle" }, found[i].step.toLocaleString("en")));
  }
  return words;
}

function lives(found, slot) {
  const marks = [];
  found.forEach((step, i) => {
    if (!i || step.life === found[i - 1].life) return;
    const x = left + i * slot;
    marks.push(svg("path", { d: `M${x.toFixed(1)} ${TOP}v${TALL}`, class: "restart" }), svg("text", { x: x + 4, y: TOP + 10, class: "tag" }, "restart"));
  });
  return marks;
}

function middle(y, wide) {
  const value = state.view["step_bars.median"];
  return value ? [svg("path", { d: `M${left} ${y(value).toFixed(1)}h${wide}`, class: "dashed" })] : [];
}

function summary(found) {
  const last = found[found.length - 1];
  return `The last ${found.length} steps by phase, ${state.view["step_bars.words"] || "no step times"}; step ${last.step}: ${spoken(last)}`;
}

function spoken({ phases: parts, seconds: whole }) {
  const told = parts.map((part, i) => (part === null ? "" : `${NAMES[i]} ${seconds(part)}`)).filter(Boolean).join(", ");
  return (whole === null ? "" : seconds(whole) + (told ? ": " : "")) + told;
}

function look(event, place, where) {
  const step = place.found[Math.floor((event.clientX - where.getBoundingClientRect().left - left) / place.slot)];
  return step && [`Step ${step.step.toLocaleString("en")}`, ...spoken(step).split(/[:,] /)];
}

// ---- lists

function pair({ phase, last, median: usual, width, median_at: ghost, state: health, colour }) {
  const li = make("li"), row = make("span", "", "row"), bar = make("span", "", "bar"), fill = make("span", "", "c-" + colour), mark = make("i");
  const value = make("b", last);
  if (health === "watch") value.className = "far", value.append(make("span", ", far from the median", "sr"));
  row.append(make("span", phase), make("span", usual ? "median " + usual : "", "note"), value);
  fill.style.width = width + "%";
  mark.style.left = ghost + "%";
  mark.hidden = !usual;
  bar.append(fill, mark);
  li.append(row, bar);
  return li;
}

function learnt({ label, last, median: usual, values }) {
  const li = make("li"), numbers = make("span", "", "of");
  numbers.append(make("b", last), make("span", usual ? " · " + usual : "", "note"));
  li.append(make("span", label), spark(values), numbers);
  return li;
}

function spark(values) {
  const known = values.filter((value) => value !== null), low = Math.min(...known), high = Math.max(...known);
  const el = svg("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" });
  const points = values.map((value, i) => [(100 * i) / Math.max(1, values.length - 1), value === null ? NaN : high > low ? 18 - (16 * (value - low)) / (high - low) : 10]);
  el.append(line(points, "c-blue"));
  return el;
}

function happened({ event: what, detail, at: when }) {
  const li = make("li"), mark = make("i", "", "mark"), words = make("span", "", "when"), name = make("b", what);
  mark.dataset.state = what.startsWith("Re") ? "watch" : "ok";
  words.append(make("span", detail), aged(when, ""));
  li.append(mark, name, words);
  return li;
}

function scored({ task, score, note }) {
  const li = make("li"), row = make("span", "", "row");
  row.append(make("span", task, "long"), make("b", score));
  li.append(row, make("span", note, "note"));
  return li;
}

// ---- table

function step({ step: number, at: when, total, phases: parts, samples, tokens, staleness, reward, gradient: norm, slow: far }) {
  const tr = make("tr"), head = make("th", number), heads = state.view["step_rows.phases"] || [], whole = cellOf("Total", make("span", total || "–"));
  head.scope = "row";
  if (far) whole.className = "odd", whole.append(make("span", "longer than usual", "sr"));
  tr.append(head, cellOf("Ended", aged(when, "")), whole);
  heads.forEach(({ label, reported }, i) => reported && tr.append(cellOf(label, make("span", parts[i] || "–"))));
  for (const [label, value] of [["Samples", samples], ["Tokens", tokens], ["Staleness", staleness], ["Reward", reward], ["Gradient", norm]])
    tr.append(cellOf(label, make("span", value || "–")));
  return tr;
}

// A phase that no step reports has no column.
function heads() {
  const told = state.view["step_rows.phases"] || [];
  all("[data-phase]").forEach((el, i) => (el.hidden = !(told[i] && told[i].reported)));
}

/** @type {[string, string, (row: any) => Node][]} */
const LISTS = [["last-step", "last_step.", pair], ["learning", "learning.", learnt], ["life", "restarts.", happened], ["scores", "scores.", scored], ["steps", "step_rows.", step]];

drawers.push((cells) => {
  if (!("head.trainer" in state.view)) return;
  const begun = "step_rows.phases" in cells;
  for (const [name, prefix, row] of LISTS) {
    const el = document.querySelector(`[data-rows=${name}]`);
    if (!el || !(begun || touched(cells, prefix))) continue;
    const found = list(prefix), table = el.closest("table");
    el.replaceChildren(...found.map(row));
    if (table) table.hidden = !found.length;
  }
  if (begun) heads();
  readable(box(), bars, look);
  if (begun || "step_bars.median" in cells || touched(cells, "step_bars.")) bars();
});
