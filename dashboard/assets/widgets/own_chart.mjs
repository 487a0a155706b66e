// Charts of any metric or signal, read from the API: the explorer's, and a user's own panels on Overview. Their figures
// are made here as `dashboard/charts/figures.py` makes those of the server.
import { parseName, readJson, reason, runApi } from "../core/api.mjs";
import { fill } from "../core/cells.mjs";
import { all, make } from "../core/dom.mjs";
import { now, states } from "../core/live.mjs";
import { painters, state } from "../core/state.mjs";
import { bind, figure, range } from "./chart.mjs";
import { legends } from "./chart_menu.mjs";
import { handle } from "./own_panels.mjs";
import { across, overSteps } from "./step_axis.mjs";

// Points of a line, which the API answers for 200 series at once; lines of a chart; charts of one name; seconds.
const POINTS = 300, LINES = 12, CHARTS = 24, LEAST = 10;
const HUES = 4, DASHES = ["solid", "dash", "dot"], FEW = 40;
const BARE = ["versions", "version", "reward", "nats", "x", ""];

/**
 * @typedef {{ kind: "signal" | "metric", name: string, title?: string, missing?: string, split?: string, log?: boolean, own?: boolean }} Spec
 * @typedef {{ name: string, unit: string, ts: number[], mean: (number | null)[] }} Series
 */

/** One chart per value of a label; without one all series in one. @param {Series[]} series @param {string} label @returns {Map<string, Series[]>} */
export function split(series, label) {
  const found = new Map();
  for (const one of series) {
    const value = label ? parseName(one.name)[1][label] || "" : "";
    found.set(value, [...(found.get(value) || []), one]);
  }
  return found;
}

/** What tells the lines of a chart apart: the values of the labels that differ. @param {string[]} names @returns {string[]} */
export function lineLabels(names) {
  const labels = names.map((name) => parseName(name)[1]), keys = [...new Set(labels.flatMap(Object.keys))].sort();
  const differ = keys.filter((key) => new Set(labels.map((one) => one[key])).size > 1);
  const named = (some) => labels.map((one) => some.map((key) => one[key]).filter(Boolean).join(" · ") || "now");
  // A label that some lines do not have and that is the same on the others adds nothing, unless nothing else differs.
  const short = named(differ.filter((key) => new Set(labels.map((one) => one[key]).filter(Boolean)).size > 1));
  return new Set(short).size === labels.length ? short : named(differ);
}

export const idOf = (spec) => `${spec.kind}:${spec.name}`;
// Ids of elements and slots have no place for a name's braces.
function keyOf(spec, value) {
  let hash = 5381;
  for (const c of idOf(spec) + "|" + (spec.split || "") + "|" + value) hash = (hash * 33 + c.charCodeAt(0)) >>> 0;
  return "own-" + hash.toString(36);
}

const ends = () => {
  const b = state.boot, end = b.follow ? Math.max(b.end, now()) : b.end;
  return [end - (b.end - b.start), end];
};

async function load(holder) {
  const { spec } = holder, b = state.boot, mine = (holder.turn = (holder.turn || 0) + 1), [start, end] = ends();
  Object.assign(holder, { boot: b, at: performance.now(), width: (end - start) / POINTS });
  const ask = (run, shift) => {
    const query = new URLSearchParams({ [spec.kind]: spec.name, start: String(start - shift), end: String(end - shift), points: String(POINTS) });
    return readJson(runApi(run, "series", query)).then((answer) => answer.series);
  };
  let found = [], other = [], error = "";
  try {
    [found, other] = await Promise.all([ask(b.run, 0), b.compared ? ask(b.compared.run, b.compared.shift).catch(() => []) : []]);
  } catch (failed) {
    error = reason(failed);
  }
  // A slower answer to another question must not replace a newer one.
  if (mine !== holder.turn || b !== state.boot || !holder.isConnected) return;
  draw(holder, found, other, error);
}

function draw(holder, found, other, error) {
  const { spec } = holder, none = /** @type {[string, Series[]][]} */ ([["", []]]), known = found.filter((one) => one.mean.some((y) => y !== null));
  const groups = [...split(known, spec.split)].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  const shown = groups.length ? groups.slice(0, CHARTS) : none, keys = shown.map(([value]) => keyOf(spec, value));
  for (const el of [...holder.children]) if (!keys.includes(el.dataset.panel)) drop(el);
  const old = found.some((one) => one.ts.length) ? "No value in this time range." : spec.missing ? `Not reported by this run: ${spec.missing}` : "Not reported in this time range.";
  shown.forEach(([value, series], i) => {
    const el = holder.querySelector(`[data-panel="${keys[i]}"]`) || holder.appendChild(panel(keys[i]));
    const others = other.filter((one) => !spec.split || (parseName(one.name)[1][spec.split] || "") === value);
    chart(el, holder, { value, series, others, why: error ? error[0].toUpperCase() + error.slice(1) : old, more: i === shown.length - 1 ? groups.length - shown.length : 0 });
  });
  bind();
  states();
}

function drop(el) {
  const gd = el.querySelector(".chart");
  if (gd && gd._fullLayout) window.Plotly.purge(gd);
  el.remove();
}

function panel(key) {
  const el = make("section", "", "card panel own"), row = make("div", "", "row"), plot = make("div", "", "plot"), graph = make("div", "", "graph"), why = make("div", "", "why");
  el.id = "panel-" + key;
  el.dataset.panel = key;
  graph.id = "graph-" + key;
  row.append(make("h2"), make("span", "", "unit"));
  plot.append(graph, make("i", "", "cross"));
  why.append(make("span", "", "pill"), make("p"));
  el.append(row, make("p", "", "legend"), plot, why, make("p", "", "src"));
  return el;
}

const every = (seconds) => (seconds < 1 ? "" : seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

function chart(el, holder, { value, series, others, why, more }) {
  const { spec } = holder, key = el.dataset.panel, lines = series.slice(0, LINES), labels = lineLabels(lines.map((one) => one.name));
  const unit = series[0] ? series[0].unit : "", own = unit === "ratio" || unit === "seconds" ? unit : "", [name, fixed] = parseName(spec.name);
  const put = (where, words) => el.querySelector(where).textContent !== words && (el.querySelector(where).textContent = words);
  put("h2", spec.title || name);
  const kept = [...Object.entries(fixed).map(([label, one]) => `${label} ${one}`), value && `${spec.split} ${value}`];
  put(".unit", [unit === "ratio" ? "%" : unit, `mean of ${every(holder.width)}`, ...kept, spec.log && "log scale"].filter(Boolean).join(" · "));
  Object.assign(el.dataset, { unit: own, units: unit });
  if (spec.own && !el.querySelector(".handle")) el.querySelector(".row").prepend(handle(holder, el));
  legend(el, spec, key, labels, series.length - lines.length, more);
  const drawn = lines.map((_, i) => `${key}.${i}`), b = state.boot, targets = [...new Set(lines.map((one) => parseName(one.name)[1].target).filter(Boolean))];
  b.drawn = [...b.drawn.filter((slot) => slot.split(".")[0] !== key), ...drawn];
  if (b.behind) b.behind[1] = [...b.behind[1].filter((slot) => slot.split(".")[0] !== key), ...lines.flatMap((one, i) => (others.some((other) => other.name === one.name && other.mean.some((y) => y !== null)) ? [drawn[i]] : []))];
  const source = [spec.kind === "metric" ? "as reported" : "signal", name, targets.length > 3 ? `${targets.length} targets` : targets.join(", ")].filter(Boolean).join(" · ");
  const last = (one) => one.mean.findLast((y) => y !== null);
  fill({ ["chart." + key]: { state: lines.length ? "ok" : "unknown", health: "unknown", word: "Unknown", why: lines.length ? "" : why, source, lines: lines.map((one, i) => ({ label: labels[i], value: last(one), unit: own, source: parseName(one.name)[1].target })) } });
  // Also without lines: a page waits until each of its panels has a chart.
  figure(key, overSteps({ data: traces(lines, others, drawn), layout: layout(spec, unit) }));
  legends(el);
}

function legend(el, spec, key, labels, hidden, more) {
  const where = el.querySelector(".legend"), said = JSON.stringify([labels, hidden, more]);
  if (where.dataset.said === said) return;
  where.dataset.said = said;
  const items = labels.map((label, i) => {
    const item = make("span", "", "item"), value = make("b"), mark = make("i", "", "swatch own-line");
    item.dataset.signal = parseName(spec.name)[0];
    mark.style.setProperty("--is-line", `var(--line-${i % HUES})`);
    mark.dataset.dash = DASHES[Math.floor(i / HUES)];
    value.dataset.slot = `${key}.${i}`;
    item.append(mark, make("span", label), value);
    return item;
  });
  const notes = [hidden > 0 && `${hidden} more lines: choose a label or split`, more > 0 && `${more} more charts: choose a label`];
  where.replaceChildren(...items, ...notes.filter(Boolean).map((words) => make("span", words, "note")));
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const at = (ts) => 1000 * ts + state.tz;
function traces(lines, others, slots) {
  const base = { type: "scatter", mode: "lines", connectgaps: false, hoverinfo: "skip" }, shift = state.boot.compared ? state.boot.compared.shift : 0;
  const behind = lines.flatMap((one, i) => {
    const other = others.find((two) => two.name === one.name);
    return other ? [{ ...base, meta: "over:" + slots[i], x: other.ts.map((ts) => at(ts + shift)), y: other.mean, line: { color: colour("--c-grey"), width: 1.2, dash: DASHES[1 + (i % 2)] } }] : [];
  });
  const main = lines.map((one, i) => {
    const color = colour(`--line-${i % HUES}`), few = one.mean.filter((y) => y !== null).length < FEW;
    return { ...base, mode: few ? "lines+markers" : "lines", meta: slots[i], x: one.ts.map(at), y: one.mean, line: { color, width: 2, dash: DASHES[Math.floor(i / HUES)] }, marker: { size: 4, color } };
  });
  return [...behind, ...main];
}

function layout(spec, unit) {
  const axes = state.boot.axes, base = structuredClone(axes[BARE.includes(unit) ? "" : axes[unit] ? unit : "other"]);
  if (spec.log) base.yaxis.type = "log";
  if (document.documentElement.clientWidth && matchMedia("(pointer: coarse)").matches) base.dragmode = false;
  base.xaxis.range = across(...range());
  return base;
}

/** Shows one holder of charts per spec, in their order; what is there already stays. @param {HTMLElement} where @param {Spec[]} specs */
export function showCharts(where, specs) {
  const old = new Map([...where.children].map((el) => [el.dataset.of, el]));
  const holders = specs.map((spec) => {
    const id = idOf(spec), el = old.get(id) || Object.assign(make("div", "", "own-charts"), { spec: null });
    el.dataset.of = id;
    if (JSON.stringify(el.spec) !== JSON.stringify(spec)) Object.assign(el, { spec, boot: null });
    return el;
  });
  for (const el of old.values()) if (!holders.includes(el)) all("[data-panel]", el).forEach(drop), el.remove();
  holders.forEach((el, i) => where.children[i] !== el && where.insertBefore(el, where.children[i] || null));
  for (const el of holders) if (el.boot !== state.boot) load(el);
}

// A point is a part of the time shown, so that a chart costs the same however long that is.
painters.push(() => {
  if (!state.boot || !state.boot.follow || state.boot.error || document.hidden) return;
  for (const el of all(`[data-place="${state.boot.key}"] .own-charts`))
    if (el.boot === state.boot && performance.now() - el.at > 1000 * Math.max(LEAST, el.width)) load(el);
});
