// Rollouts: where they went (bars), where they are (census), staleness and length over time, solve rates. Only text nodes.
import { list } from "../core/cells.mjs";
import { by, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { drawers, painters, state } from "../core/state.mjs";
import { ask } from "./rollout_table.mjs";
import { canvas, fitted, heatAt, heatMap, line, readable, scale, svg, when } from "./svg.mjs";

const box = (name) => document.querySelector(`[data-draw=${name}]`);
const shown = () => state.boot && state.boot.key === "rollouts" && state.view["rollouts.mode"] === "ok";
const plain = (count) => count.toLocaleString("en");
export const stateWord = (name) => (state.view["rollouts.words"] || {})[name] || String(name).replaceAll("_", " ");

// ---- where they went

const UNITS = [["rollouts", "rollouts"], ["tokens", "response_tokens"], ["GPU-seconds", "gpu_seconds"], ["cost", "usd"]];
// If some rollouts do not report tokens, a bar's amounts are lower bounds and those of the rest upper bounds.
const amount = (row, field, unit) => (row[field] !== null && field !== "rollouts" ? { lower: "≥ ", upper: "≤ " }[row.bound] || "" : "") + exact(row[field], unit);
const partly = (row) => (row.bound === "lower" ? `of ${plain(row.told)} of ${plain(row.rollouts)} rollouts` : "");
// Eight digits have no room between the columns.
const big = (value) => (value < 1e7 ? plain(value) : format.number(value));
const exact = (value, unit) => (value === null ? "–" : unit === "cost" ? format.money(value) : unit === "GPU-seconds" ? big(Math.round(value)) : big(value));
const said = (row) => UNITS.slice(1).filter(([, field]) => row[field] !== null).map(([unit, field]) => amount(row, field, unit) + (unit === "cost" ? "" : ` ${unit}`)).concat(partly(row) || []).join(" · ");

function exits() {
  const where = box("exits"), rows = list("exits.");
  if (!where || !shown()) return;
  where.hidden = !rows.length && !state.view["exits.in"];
  if (where.hidden) return where.replaceChildren();
  if (!where.clientWidth) return;
  const all = [...rows, { exit: "in_flight", rollouts: state.view["exits.in"] || 0, response_tokens: null, gpu_seconds: null, usd: null, derived: false, bound: "" }], narrow = where.clientWidth < 560;
  const label = all.map((row) => `${stateWord(row.exit)}${row.derived ? " (estimated)" : ""}: ${row.derived ? "" : plain(row.rollouts) + " rollouts"}${said(row) ? (row.derived ? "" : ", ") + said(row) : ""}`).join("; ");
  const sums = UNITS.map(([, field]) => rows.reduce((sum, row) => sum + (row[field] || 0), 0));
  const left = narrow ? 0 : 178, tall = narrow ? 58 : Math.max(rows.some(partly) ? 42 : 30, Math.min(38, Math.floor(228 / all.length))), top = narrow ? 4 : 24, step = 8;
  const el = canvas(where, top + tall * all.length + step, label), units = narrow ? UNITS.slice(0, 1) : UNITS;
  // Rollouts come with their share, which needs room.
  const wide = where.clientWidth - left, parts = narrow ? [1] : [0.34, 0.26, 0.23, 0.17];
  let x = left;
  units.forEach(([unit, field], u) => {
    const size = wide * parts[u], most = Math.max(1e-9, ...all.map((row) => row[field] || 0)), room = narrow ? 112 : u ? 92 : 130;
    if (!narrow) el.append(svg("text", { x, y: 12, class: "unit" }, unit));
    all.forEach((row, r) => {
      const flying = r === rows.length, y = top + tall * r + (flying ? step : 0), value = row[field];
      if (u === 0) el.append(...name(row, narrow, y, flying));
      if (flying && u) return;
      if (row.derived && unit === "rollouts") return void el.append(svg("text", { x, y: y + (narrow ? 36 : 19), class: "none" }, narrow ? said(row) : "–"));
      const long = value ? Math.max(2, ((size - room) * value) / most) : 0, at = y + (narrow ? 18 : 6);
      if (value) el.append(svg("rect", { x: x + 0.5, y: at, width: long.toFixed(1), height: 16, rx: 2, class: `${row.exit}${row.derived ? " derived" : ""}` }));
      el.append(svg("text", { x: x + long + (long ? 7 : 0), y: at + 12.5, class: value === null ? "none" : "count" }, amount(row, field, unit)));
      if (unit === "tokens" && !narrow && partly(row)) el.append(svg("text", { x, y: at + 28, class: "share" }, partly(row)));
      if (u === 0 && !flying && sums[0]) el.append(svg("text", { x: x + size - (narrow ? 0 : 22), y: at + 12.5, "text-anchor": "end", class: "share" }, format.text(value / sums[0], "ratio")));
      if (narrow && said(row)) el.append(svg("text", { x, y: at + 31, class: "share" }, said(row)));
    });
    x += size;
  });
  const line = top + tall * rows.length + step / 2;
  el.append(svg("line", { x1: 0, x2: where.clientWidth, y1: line, y2: line, class: "rule" }));
}

function name(row, narrow, y, flying) {
  const words = flying ? "no outcome yet" : stateWord(row.exit);
  const found = [svg("text", { x: 0, y: y + (narrow ? 12 : 19), class: "name" }, words)];
  if (row.derived) found[0].append(svg("tspan", { class: "share", dx: 6 }, "estimated"));
  return found;
}

// ---- where they are

const kept = new Map();
function census() {
  const where = document.querySelector("[data-rows=ro-census]");
  if (!where) return;
  const rows = list("census.");
  for (const row of rows) {
    const li = kept.get(row.state) || entry(row.state);
    fill(li, row);
    if (li.parentNode !== where) where.append(li);
  }
  for (const li of [...where.children]) if (!rows.some(({ state }) => kept.get(state) === li)) li.remove();
}

// Made once, because a rebuilt list loses the focus.
function entry(state) {
  const li = make("li"), button = make("button", "", "state-row"), head = make("span", "", "row"), track = make("span", "", "bar");
  button.type = "button";
  button.title = "List them in the table, oldest first";
  head.append(make("span", stateWord(state), "word"), make("span", "", "note"), make("b"));
  track.append(make("span"));
  button.append(head, track);
  button.addEventListener("click", () => {
    ask({ state, sort: "moved", order: "asc", find: null, group: null });
    by("ro-table").scrollIntoView({ block: "start" });
  });
  li.append(button);
  kept.set(state, li);
  return li;
}

// `label`: the name of a number that is of several states; no list has its rollouts.
function fill(li, { state, rollouts: count, width, since, label }) {
  li.querySelector(".word").textContent = label || stateWord(state);
  li.querySelector("b").textContent = count === null ? "not reported" : plain(count);
  li.querySelector(".bar span").style.width = width + "%";
  li.querySelector("button").disabled = !count || Boolean(label);
  li.querySelector("button").classList.toggle("whole", Boolean(label));
  const age = li.querySelector(".note");
  if (since === null) delete age.dataset.since, (age.textContent = "");
  else age.dataset.since = since;
}

function shares(rows, cells) {
  const where = document.querySelector(`[data-rows=${rows}]`);
  where.replaceChildren(...list(cells).map(({ environment, share, width }) => {
    const li = make("li"), head = make("span", "", "row"), track = make("span", "", "bar"), fill = make("span"), word = make("span", environment, "long");
    word.title = environment;
    head.append(word, make("b", share));
    fill.style.width = width + "%";
    track.append(fill);
    li.append(head, track);
    return li;
  }));
}

// ---- heat maps

const MOST_ROWS = 24, HEIGHT = 196;

function columns(prefix, row) {
  const found = [], width = 1000 * state.view["rollout_columns.width"], form = new RegExp(`^${prefix}\\.\\d+$`);
  for (const [key, cell] of Object.entries(state.view)) {
    if (!form.test(key)) continue;
    const sums = new Map();
    for (const [bin, count] of cell) sums.set(row(bin), (sums.get(row(bin)) || 0) + count);
    const from = Number(key.slice(prefix.length + 1)) * width + state.tz;
    found.push([from, from + width, [...sums], cell]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}

// The value below which a share of a column lies, as a row and a part of it.
function quantile(cell, share, part) {
  const total = cell.reduce((sum, [, count]) => sum + count, 0);
  let below = 0;
  for (const [bin, count] of cell) {
    if (below + count >= share * total) return bin + (part ? (share * total - below) / count : 0.5);
    below += count;
  }
  return NaN;
}

function lines(map, found, row, part) {
  const path = (share) => {
    const points = [];
    found.forEach(([from, to, , cell], i) => {
      if (i && from - found[i - 1][1] > 3 * (to - from)) points.push([0, NaN]);
      const at = (from + to) / 2;
      if (at >= map.start && at <= map.end) points.push([map.x(at), map.y(row(quantile(cell, share, part)))]);
    });
    return points;
  };
  map.el.append(line(path(0.5), "dashed"), line(path(0.95), "solid"));
}

function drawable(key) {
  const where = box(key);
  if (!where || !shown()) return null;
  where.hidden = !state.view[key + ".total"];
  return where.hidden || !where.clientWidth ? null : where;
}

// Rows are numbers of versions; what is beyond the last row is in it.
function stale() {
  const where = drawable("staleness_heat");
  if (!where) return;
  let top = Math.ceil(state.view["staleness_heat.bound"] || 0);
  for (const [key, cell] of Object.entries(state.view)) if (/^staleness_heat\.\d+$/.test(key)) top = Math.max(top, ...cell.map(([bin]) => bin));
  const rows = Math.min(MOST_ROWS, Math.max(4, top + 1)), tall = Math.floor(HEIGHT / rows), every = Math.ceil(14 / tall);
  const names = Array.from({ length: rows }, (_, i) => (i === rows - 1 && top >= rows ? i + "+" : i % every ? "" : String(i)));
  const row = (bin) => Math.max(0, Math.min(rows - 1, bin)), found = columns("staleness_heat", row);
  const label = `${plain(state.view["staleness_heat.total"])} uses of rollouts by their staleness in versions`;
  const map = heatMap(where, { names, middle: true, columns: found, most: state.view["staleness_heat.most"], tall, label });
  const bound = state.view["staleness_heat.bound"];
  if (bound && bound < rows) map.el.append(svg("path", { d: `M${map.left} ${map.y(bound + 1)}H${map.left + map.wide}`, class: "bound" }));
  lines(map, found, (value) => Math.min(rows - 0.5, value), false);
  where.look = Object.assign(map, { row: (i) => `${i}${i === rows - 1 && top >= rows ? " or more" : ""} version${i === 1 ? "" : "s"}`, found });
  scale("staleness_heat", state.view["staleness_heat.most"], state.view["rollout_columns.width"]);
}

// Bins are half powers of two; two make a row where there are many.
function length() {
  const where = drawable("length_heat");
  if (!where) return;
  const bins = Object.entries(state.view).filter(([key]) => /^length_heat\.\d+$/.test(key)).flatMap(([, cell]) => cell.map(([bin]) => bin));
  const low = Math.min(...bins), span = Math.max(...bins) - low + 1, pair = span > 14 ? 2 : 1, first = Math.floor(low / pair);
  const rows = Math.max(4, Math.floor(Math.max(...bins) / pair) - first + 1), tall = Math.max(7, Math.min(28, Math.floor(HEIGHT / rows)));
  const edge = (row) => 2 ** ((pair * (first + row)) / 2), words = (value) => format.number(value >= 100 ? Math.round(value) : value), every = Math.ceil(8 / tall);
  const names = Array.from({ length: rows }, (_, i) => ((pair * (first + i + 1)) % (every > 1 ? 4 : 2) ? "" : words(edge(i + 1))));
  const found = columns("length_heat", (bin) => Math.floor(bin / pair) - first);
  const label = `${plain(state.view["length_heat.total"])} rollouts by their tokens when they ended`;
  const map = heatMap(where, { names, columns: found, most: state.view["length_heat.most"], tall, label });
  lines(map, found, (bin) => bin / pair - first, true);
  where.look = Object.assign(map, { row: (i) => `${words(edge(i))} to ${words(edge(i + 1))} tokens`, found });
  scale("length_heat", state.view["length_heat.most"], state.view["rollout_columns.width"]);
}

function look(event, map, where) {
  const found = heatAt(where, map, event);
  if (!found) return;
  const column = map.found.find(([from, to]) => found.ms >= from && found.ms < to);
  const count = column ? (column[2].find(([row]) => row === found.row) || [0, 0])[1] : 0;
  return [when(found.ms, map), `${map.row(found.row)}: ${plain(count)}`];
}

// ---- solve rates

function solve() {
  // `of`: the group size where there is a bar for each number of solved members.
  const where = box("solve"), rows = state.view["rollouts.solve"] || [], of = state.view["solve_rates.of"];
  if (!where || !shown()) return;
  where.hidden = !rows.length;
  if (!rows.length || !where.clientWidth) return;
  const most = Math.max(...rows.map(({ groups }) => groups), 1), wide = where.clientWidth / rows.length, tall = 116, bottom = 140;
  const words = (label) => (of ? `${label} of ${of} solved` : label);
  const el = canvas(where, 164, rows.map(({ label, groups }) => `${words(label)}: ${plain(groups)} groups`).join(", "));
  const good = rows.map(({ productive }) => productive), first = good.indexOf(true), last = good.lastIndexOf(true);
  if (first >= 0) {
    el.append(svg("rect", { x: first * wide, y: 4, width: (last - first + 1) * wide, height: bottom - 4, class: "band" }));
    el.append(svg("text", { x: ((first + last + 1) / 2) * wide, y: 18, "text-anchor": "middle" }, "productive"));
  }
  rows.forEach(({ label, groups: count, productive }, i) => {
    const high = count ? Math.max(2, (count / most) * (tall - 20)) : 0, x = wide * (i + 0.5);
    el.append(svg("rect", { x: wide * i + 2, y: bottom - high, width: Math.max(1, wide - 4), height: high, class: productive ? "good" : "flat" }));
    if (count) el.append(svg("text", { x, y: bottom - high - 4, "text-anchor": "middle", class: "count" }, plain(count)));
    if (of) el.append(svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, i === rows.length - 1 ? `${label} of ${of}` : label));
    else if (i % 2 === 0) el.append(svg("text", { x: wide * i, y: bottom + 16, "text-anchor": i ? "middle" : "start" }, i ? `${10 * i}%` : "0"));
  });
  if (!of) el.append(svg("text", { x: where.clientWidth, y: bottom + 16, "text-anchor": "end" }, "100%"));
}

// ---- all of it

// Uses the address by which this browser reached the server.
function recipe() {
  const address = location.origin + by("app").dataset.base.replace(/\/$/, "");
  document.querySelector("[data-code=push]").textContent = (state.view["rollouts.push"] || "").replace("@here@", address);
}

drawers.push((cells) => {
  if (!("rollouts.mode" in state.view) || !box("exits")) return;
  const any = (prefix) => "rollouts.mode" in cells || Object.keys(cells).some((key) => key.startsWith(prefix));
  for (const [name, draw] of [["exits", exits], ["solve", solve]]) fitted(box(name), draw);
  for (const [name, draw] of [["staleness_heat", stale], ["length_heat", length]]) readable(box(name), draw, look);
  if ("rollouts.push" in cells) recipe();
  if (any("exits.")) exits();
  if (any("census.")) census();
  if (any("zero_causes.")) shares("ro-zero", "zero_causes.");
  if (any("discards.")) shares("ro-discarded", "discards.");
  if (any("rollouts.solve")) solve();
  if (any("staleness_heat.") || "rollout_columns.width" in cells) stale();
  if (any("length_heat.") || "rollout_columns.width" in cells) length();
});
painters.push(() => (stale(), length()));
