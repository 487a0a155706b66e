// Compared runs: a chart per signal with a line per run, over time since their start, the clock or their steps.
import { parseName, readJson, reason, runApi, seriesNames } from "../core/api.mjs";
import { list } from "../core/cells.mjs";
import { by, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { state } from "../core/state.mjs";
import { chosen, keyOf, letter, runRow, want, wanted } from "./runs.mjs";
import { canvas, fitted, line, svg } from "./svg.mjs";

const POINTS = 200, SIGNALS = 6, TALL = 232, LEFT = 52, TOP = 8, AXIS = 22, FIRST = "trainer_wait_ratio", LEAST = 10, LOOK = 60;
const WAYS = [["time", "Since start"], ["clock", "Clock"], ["step", "Step"]];
const told = new Map();
let loaded = { key: "", at: 0, every: LEAST, runs: [] }, turn = 0, cursor = null;

const signals = () => {
  const found = seriesNames(wanted("signal"));
  return found.length ? found.slice(0, SIGNALS) : [FIRST];
};
const way = () => (WAYS.some(([name]) => name === wanted("by")) ? wanted("by") : "time");
const signalOf = (name) => name.split("{")[0];
const infoOf = (name) => (state.view["runs.info"] || {})[signalOf(name)] || { title: signalOf(name), unit: "", actor: "" };
const labelsOf = (name) => Object.values(parseName(name)[1]).join(", ");
const shownUnit = (unit) => (unit === "ratio" || unit === "seconds" ? unit : "");
const value = (number, name) => format.text(number, shownUnit(infoOf(name).unit));

// ---- reading

// What a run's signals are now: for the menu, and for why a line is missing.
async function status(run) {
  const known = told.get(run);
  if (known && performance.now() - known.at < 1000 * LOOK) return known.signals;
  const { signals } = await readJson(runApi(run, "status"));
  told.set(run, { at: performance.now(), signals });
  return signals;
}

function span(row) {
  const live = !["finished", "crashed"].includes(row.life), end = live ? now() : (state.view["runs.at"] || [])[list("runs.").indexOf(row)];
  const start = row.start ?? now() - 3600;
  return { live, start, end: Math.max(start + 60, (end ?? start) + 1) };
}

async function one(name) {
  const row = runRow(name);
  if (!row) return { name, error: "no such run" };
  const { live, start, end } = span(row), query = new URLSearchParams({ start, end: String(end), points: String(POINTS), by: way() === "step" ? "step" : "time" });
  for (const signal of signals()) query.append("signal", signal);
  try {
    const [found, now] = await Promise.all([readJson(runApi(name, "series", query)), status(name)]);
    return { name, live, start, width: (end - start) / POINTS, series: found.series, now };
  } catch (error) {
    return { name, error: reason(error) };
  }
}

async function load(key) {
  const mine = ++turn, runs = await Promise.all(chosen().map(one));
  // A slower answer to another question must not replace a newer one.
  if (mine !== turn) return;
  const widths = runs.filter((run) => run.live).map((run) => run.width);
  loaded = { key, at: performance.now(), every: Math.max(LEAST, ...(widths.length ? [Math.min(...widths)] : [])), runs, live: widths.length > 0 };
  draw();
}

export function compare() {
  const where = by("compare"), picked = chosen(), key = JSON.stringify([picked, signals(), way()]);
  if (!where) return;
  where.hidden = picked.length < 2;
  if (where.hidden) return void (turn++, (loaded.key = ""));
  const stale = loaded.live && performance.now() - loaded.at > 1000 * loaded.every;
  if (key !== loaded.key || stale) {
    if (key !== loaded.key) head();
    loaded.key = key;
    loaded.at = performance.now();
    load(key);
  }
}

// ---- the query

function change(changes) {
  want(changes);
  compare();
}

function head() {
  const title = make("h2", "Compared"), ways = make("div", "", "ways"), chips = make("div", "", "chosen");
  ways.setAttribute("role", "group");
  ways.setAttribute("aria-label", "Align by");
  for (const [name, words] of WAYS) {
    const button = make("button", words);
    button.type = "button";
    button.dataset.way = name;
    button.setAttribute("aria-pressed", String(way() === name));
    button.addEventListener("click", () => (change({ by: name === "time" ? null : name }), by("cm-head").querySelector(`[data-way=${name}]`).focus()));
    ways.append(button);
  }
  const asked = signals();
  chips.append(...asked.map((name) => signalChip(name, asked)), menu(asked));
  by("cm-head").replaceChildren(title, chips, ways);
}

function signalChip(name, asked) {
  const el = make("span", "", "chosen-one"), off = make("button", "×"), words = titled(name);
  off.type = "button";
  off.hidden = asked.length < 2;
  off.setAttribute("aria-label", `Remove ${words}`);
  off.addEventListener("click", () => change({ signal: asked.filter((one) => one !== name).join(",") }));
  el.append(make("span", words, "name"), off);
  return el;
}

const titled = (name) => [infoOf(name).title, labelsOf(name)].filter(Boolean).join(": ");

// Series that any of the runs has: what none can draw is not offered.
function menu(asked) {
  const label = make("label"), select = make("select"), groups = {}, infos = state.view["runs.info"] || {};
  label.append(make("span", "Add a signal", "sr"), select);
  select.append(new Option("Add a signal …", ""));
  const drawable = ([name, { value, why }]) => infos[signalOf(name)] && !asked.includes(name) && (value !== null || why.includes("; the last value was "));
  const offered = new Set(loaded.runs.flatMap((run) => Object.entries(run.now || {})).filter(drawable).map(([name]) => name));
  for (const name of [...offered].sort((a, b) => titled(a).localeCompare(titled(b)))) (groups[infoOf(name).actor] ||= []).push(name);
  for (const actor of Object.keys(groups).sort()) {
    const group = make("optgroup");
    group.label = actor;
    group.append(...groups[actor].map((name) => new Option(titled(name), name)));
    select.append(group);
  }
  select.disabled = asked.length >= SIGNALS;
  select.addEventListener("change", () => select.value && change({ signal: [...signals(), select.value].join(",") }));
  return label;
}

// ---- lines

// Of a bare name the series with the fewest labels that has points.
function seriesOf(run, name) {
  const fits = (run.series || []).filter((one) => one.name === name || (signalOf(one.name) === name && !name.includes("{")));
  const full = fits.filter((one) => one.mean.some((y) => y !== null));
  return full.sort((a, b) => a.name.split('="').length - b.name.split('="').length)[0];
}

function lineOf(run, i, name) {
  const found = run.error ? null : seriesOf(run, name);
  if (!found) return { run, i, xs: [], ys: [], why: run.error || why(run, name) };
  const xs = way() === "step" ? found.step : found.ts.map((ts) => (way() === "time" ? Math.max(0, ts - run.start) : ts));
  return xs.length ? { run, i, xs, ys: found.mean } : { run, i, xs, ys: [], why: "no trainer steps" };
}

function why(run, name) {
  const now = run.now || {}, near = now[name] || Object.entries(now).filter(([key]) => signalOf(key) === signalOf(name)).map(([, one]) => one)[0];
  if (!near) return "not reported";
  if (near.value !== null) return way() === "step" ? "no trainer steps" : "no points in its time range";
  return near.why || near.state;
}

function quantile(values, q) {
  const at = (values.length - 1) * q, low = Math.floor(at), high = Math.ceil(at);
  return values[low] + (values[high] - values[low]) * (at - low);
}

function figures({ ys }) {
  const known = ys.filter((y) => y !== null), rising = [...known].sort((a, b) => a - b);
  return known.length ? [known[known.length - 1], quantile(rising, 0.5), quantile(rising, 0.95)] : [null, null, null];
}

function steps(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw)), size = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9) * size; at <= high + size * 1e-9; at += size) found.push(Math.abs(at) < size / 1e6 ? 0 : at);
  return found;
}

const SECONDS = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
function marks(low, high, count) {
  if (way() === "step") return steps(low, high, count).filter(Number.isInteger);
  const size = SECONDS.find((s) => (high - low) / s <= count) || (high - low) / count, shift = way() === "clock" ? state.tz / 1000 : 0, found = [];
  for (let at = Math.ceil((low + shift) / size) * size - shift; at <= high; at += size) found.push(at);
  return found;
}

function xWords(x, exact) {
  if (way() === "step") return (exact ? "step " : "") + Math.round(x).toLocaleString("en");
  if (way() === "clock") return format.clock(1000 * x + state.tz, loaded.wide).slice(0, loaded.wide ? 11 : exact ? 8 : 5);
  return x < 1 && !exact ? "0" : x < 1 ? "at the start" : format.span(x) + (exact ? " in" : "");
}

// One span for all panels: what is above each other is at the same time.
function bounds() {
  const xs = loaded.lines.flatMap((of) => of.lines.flatMap((one) => (one.xs.length ? [one.xs[0], one.xs[one.xs.length - 1]] : [])));
  const low = way() === "time" ? 0 : Math.min(...xs), high = Math.max(...xs);
  loaded.wide = high - low > 86400;
  return xs.length ? { low, high: high > low ? high : low + 1 } : { low: 0, high: 1 };
}

function draw() {
  loaded.lines = signals().map((name) => ({ name, lines: loaded.runs.map((run, i) => lineOf(run, i, name)) }));
  const focus = document.activeElement && document.activeElement.closest("#cm-head") && document.activeElement.dataset.way;
  head();
  if (focus) by("cm-head").querySelector(`[data-way=${focus}]`).focus();
  const lost = loaded.runs.filter((run) => run.error);
  by("cm-said").textContent = lost.map((run) => `${run.name}: ${run.error}.`).join(" ");
  const panels = by("cm-panels");
  while (panels.childElementCount > loaded.lines.length) panels.lastChild.remove();
  while (panels.childElementCount < loaded.lines.length) panels.append(panel());
  loaded.lines.forEach((of, i) => paint(panels.children[i], of));
  held();
  by("compare").dataset.drawn = loaded.key;
}

function panel() {
  const el = make("section", "", "card panel compared-one"), title = make("div", "", "row");
  title.append(make("h3"), make("span", "", "unit"), make("span", "", "at"));
  const table = make("table"), headings = make("tr");
  for (const name of ["Run", "Last", "Median", "p95"]) headings.append(Object.assign(make("th", name), { scope: "col" }));
  table.append(make("thead"), make("tbody"));
  table.tHead.append(headings);
  const beside = make("div", "", "values grid");
  beside.append(table, make("p", "", "note"));
  const sides = make("div", "", "sides-by"), chart = make("div", "", "lines");
  chart.tabIndex = 0;
  sides.append(chart, beside);
  el.append(title, sides);
  chart.addEventListener("pointermove", (event) => point(at(chart, event.clientX)));
  chart.addEventListener("pointerleave", () => point(null));
  chart.addEventListener("blur", () => point(null));
  chart.addEventListener("keydown", arrow);
  fitted(chart, () => el.of && (paint(el, el.of), held()));
  return el;
}

function paint(el, of) {
  el.of = of;
  const { title, unit } = infoOf(of.name), labels = labelsOf(of.name), chart = el.querySelector(".lines");
  el.querySelector("h3").textContent = title;
  el.querySelector(".unit").textContent = [labels, unit === "ratio" ? "%" : unit].filter(Boolean).join(" · ");
  rows(el, of);
  const some = of.lines.some((one) => one.xs.length);
  chart.hidden = !some;
  if (some && chart.clientWidth) lines(chart, of);
}

function scale(of) {
  const ys = of.lines.flatMap((one) => one.ys.filter((y) => y !== null)), low = Math.min(...ys), high = Math.max(...ys);
  // A line that has no zero near it shows its own movement.
  const from = low >= 0 && low < 0.7 * high ? 0 : low, room = (high - from || Math.abs(high) || 1) * 0.06;
  return [from === 0 ? 0 : from - room, high + room];
}

function lines(chart, of) {
  const wide = chart.clientWidth, names = wide > 520, right = names ? 152 : 26, inner = wide - LEFT - right, bottom = TALL - AXIS;
  const { low, high } = bounds(), [y0, y1] = scale(of);
  const x = (at) => LEFT + (inner * (at - low)) / (high - low), y = (v) => bottom - ((bottom - TOP) * (v - y0)) / (y1 - y0);
  const el = canvas(chart, TALL, `${titled(of.name)}: ${of.lines.map((one) => `${one.run.name} ${one.xs.length ? value(figures(one)[0], of.name) : "no data"}`).join(", ")}`);
  const axes = svg("g", { class: "axes" });
  for (const v of steps(y0, y1, 4)) axes.append(svg("line", { x1: LEFT, x2: LEFT + inner, y1: y(v), y2: y(v) }), svg("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, value(v, of.name)));
  for (const v of marks(low, high, Math.max(2, Math.floor(inner / 84)))) if (x(v) < LEFT + inner - 10) axes.append(svg("text", { x: x(v), y: TALL - 6, "text-anchor": "middle" }, xWords(v)));
  el.append(axes);
  const ends = [];
  for (const one of of.lines.filter((one) => one.xs.length)) {
    const path = line(one.xs.map((at, i) => [x(at), one.ys[i] === null ? NaN : y(one.ys[i])]), "run-line");
    path.dataset.line = one.i;
    const last = one.ys.findLastIndex((v) => v !== null);
    el.append(path, svg("circle", { cx: x(one.xs[last]), cy: y(one.ys[last]), r: 3, "data-line": one.i }));
    ends.push({ one, x: x(one.xs[last]), y: y(one.ys[last]) });
  }
  el.append(...tags(ends, LEFT + inner + 8, names), svg("line", { class: "cursor", y1: TOP, y2: bottom, x1: -9, x2: -9 }));
  chart.look = { x, low, high, inner };
}

// Names of runs differ at their start or end.
const brief = (name, most) => (name.length > most ? name.slice(0, most / 2) + "…" + name.slice(1 - most / 2) : name);

// At the ends of the lines, pushed apart where they would cover each other.
function tags(ends, left, names) {
  ends.sort((a, b) => a.y - b.y);
  // A run that ended long before the others has its label there.
  for (const end of ends) end.left = names && end.x + 160 < left ? end.x + 8 : left;
  for (const column of new Set(ends.map((end) => end.left))) {
    const beside = ends.filter((end) => Math.abs(end.left - column) < 130);
    let before = -Infinity, after = TALL - AXIS + 2;
    for (const end of beside) before = end.at = Math.max(end.at ?? end.y, before + 14);
    for (const end of beside.reverse()) after = end.at = Math.min(end.at, after), (after -= 14);
  }
  return ends.map(({ one, at, left }) => {
    const el = svg("text", { x: left, y: at + 4, class: "tag", "data-line": one.i }), name = one.run.name;
    const key = svg("tspan", { class: "key" }, letter(one.i));
    el.append(key, svg("tspan", { dx: 5 }, names ? brief(name, 17) : ""));
    return el;
  });
}

function rows(el, of) {
  el.querySelector("tbody").replaceChildren(...of.lines.map((one) => {
    const tr = make("tr"), th = make("th");
    th.scope = "row";
    th.append(keyOf(one.i), make("span", brief(one.run.name, 22), "name"));
    th.title = one.run.name;
    tr.append(th);
    if (!one.xs.length) {
      const td = cellOf("", make("span", one.why, "note"));
      td.colSpan = 3;
      tr.append(td);
    } else tr.append(...figures(one).map((number, i) => cellOf(["Last", "Median", "p95"][i], make("span", value(number, of.name), "num"))));
    tr.addEventListener("pointerenter", () => (el.dataset.hot = one.i));
    tr.addEventListener("pointerleave", () => delete el.dataset.hot);
    return tr;
  }));
  const drawn = Math.max(...of.lines.map((one) => one.ys.filter((y) => y !== null).length));
  el.querySelector(".values > .note").textContent = drawn > 0 ? `Median and p95 of the points drawn, at most ${POINTS} a run.` : "";
}

// ---- the cross-hair, shared by all panels

function at(chart, clientX) {
  if (!chart.look) return null;
  const { low, high, inner } = chart.look, part = (clientX - chart.getBoundingClientRect().left - LEFT) / inner;
  return part < 0 || part > 1 ? null : low + part * (high - low);
}

function arrow(event) {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key], look = event.currentTarget.look;
  if (!way || !look) return;
  event.preventDefault();
  const step = (look.high - look.low) / 60;
  point(Math.min(look.high, Math.max(look.low, (cursor ?? (way > 0 ? look.low : look.high)) + way * step)));
}

function near({ xs, ys }, x) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) if (ys[i] !== null && (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x))) best = i;
  // Beyond its ends a run has no value.
  const edge = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  return best >= 0 && x >= xs[0] - 2 * edge && x <= xs[xs.length - 1] + 2 * edge ? ys[best] : null;
}

// Redrawn charts keep the values under the cursor.
const held = () => cursor !== null && point(cursor);

function point(x) {
  cursor = x;
  for (const el of by("cm-panels").children) {
    const { look } = el.querySelector(".lines"), mark = el.querySelector(".cursor"), cells = el.querySelectorAll("tbody td[data-label=Last] span");
    if (mark && look) mark.setAttribute("x1", x === null ? -9 : look.x(x)), mark.setAttribute("x2", x === null ? -9 : look.x(x));
    el.querySelector("thead th:nth-child(2)").textContent = x === null ? "Last" : "At cursor";
    el.querySelector(".at").textContent = x === null ? "" : xWords(x, true);
    el.of.lines.filter((one) => one.xs.length).forEach((one, i) => (cells[i].textContent = value(x === null ? figures(one)[0] : near(one, x), el.of.name)));
  }
}
