// Sandboxes: heat map and funnel as SVG, bars and rows, from the cells of `dashboard/pages/sandboxes/data.py`. Only text nodes.
import { list, touched } from "../core/cells.mjs";
import { aged, by, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { drawers, painters, state } from "../core/state.mjs";
import { canvas, fitted, heatAt, heatMap, line, readable, scale, svg, when } from "./svg.mjs";

const ROW = 13;
const box = (name) => document.querySelector(`[data-draw=${name}]`);
const shown = () => state.boot && state.boot.key === "sandboxes" && state.view["sandboxes.mode"] === "ok";

// ---- heat map

const seconds = (edge) => (edge === "+Inf" ? Infinity : Number(edge));
const duration = (value) => format.text(value, "seconds");

// All rows have the same height; within a row time is logarithmic.
function place(edges, value) {
  const i = edges.findIndex((edge) => value <= edge), low = i ? edges[i - 1] : edges[0] / 2, high = edges[i] === Infinity ? 4 * low : edges[i];
  return i + Math.min(1, Math.log(Math.max(value, low) / low) / Math.log(high / low));
}

function columns(names, width) {
  const found = [];
  for (const [key, cell] of Object.entries(state.view)) {
    if (!/^spin_ups\.\d+$/.test(key)) continue;
    const number = Number(key.split(".")[1]), rows = cell.map(([edge, count]) => [names.indexOf(edge), count]).filter(([row]) => row >= 0);
    found.push([number * width + state.tz, (number + 1) * width + state.tz, rows]);
  }
  return found;
}

function heat() {
  const where = box("heat");
  if (!where || !shown() || !where.clientWidth || !state.view["spin_ups.edges"]) return;
  const names = state.view["spin_ups.edges"], edges = names.map(seconds), width = 1000 * state.view["spin_ups.width"];
  const words = edges.map((edge, i) => (i % 2 && edge !== Infinity ? duration(edge) : ""));
  const map = heatMap(where, { names: words, columns: columns(names, width), most: state.view["spin_ups.most"], tall: ROW, label: summary() });
  const room = (points) => points.filter(([at]) => at >= map.start && at <= map.end).map(([at, value]) => [map.x(at), value === null ? NaN : map.y(place(edges, value))]);
  map.el.append(line(room(series("card.sb_p95")), "dashed"), line(room(series("card.sb_oldest")), "oldest"));
  map.el.append(...tag(room(series("card.sb_oldest")), state.view["sandboxes.oldest"], map));
  where.look = Object.assign(map, { names, width });
  scale("heat", state.view["spin_ups.most"], state.view["spin_ups.width"]);
}

function series(key) {
  const [xs, ys] = state.sparks[key] || [[], []];
  return xs.map((at, i) => [at + state.tz, ys[i]]);
}

// The number stands where the line ends, which is where it matters.
function tag(points, words, { left, wide, top }) {
  const last = points.findLast(([, y]) => Number.isFinite(y));
  if (!last || !words) return [];
  const [x, y] = last, below = y < top + 2 * ROW;
  return [svg("circle", { cx: x, cy: y, r: 4, class: "end" }),
    svg("text", { x: Math.min(x + 2, left + wide), y: below ? y + 18 : y - 9, "text-anchor": "end", class: "tag" }, "oldest pending " + words)];
}

function summary() {
  const number = (state.view["spin_ups.total"] || 0).toLocaleString("en"), oldest = state.view["sandboxes.oldest"], p95 = state.view["sandboxes.p95"];
  return `${number} sandboxes became ready in this range` + (p95 ? `, p95 now ${p95}` : "") + (oldest ? `; the oldest pending has waited ${oldest}` : "");
}

function between(names, row) {
  const edge = names[row], before = names[row - 1];
  if (edge === "+Inf") return "over " + duration(Number(before));
  return row ? `${duration(Number(before))} to ${duration(Number(edge))}` : "up to " + duration(Number(edge));
}

function look(event, map, where) {
  const found = heatAt(where, map, event);
  if (!found) return;
  const column = Math.floor((found.ms - state.tz) / map.width), counts = state.view["spin_ups." + column] || [];
  const [, count] = counts.find(([edge]) => edge === map.names[found.row]) || [0, 0];
  return [when(column * map.width + state.tz, map), `${between(map.names, found.row)}: ${count.toLocaleString("en")}`];
}

// ---- funnel

const FADE = { requested: 1, started: 0.85, ready: 0.7, "first exec": 0.55 };

function funnel() {
  const where = box("funnel"), rows = state.view["sandboxes.funnel"] || [];
  if (!where || !shown()) return;
  // First, for what is hidden has no width, and would stay hidden when rows come.
  where.hidden = !rows.length;
  if (!rows.length) return where.replaceChildren();
  if (!where.clientWidth) return;
  const number = (count) => (count === null ? "no data" : count.toLocaleString("en"));
  where.classList.toggle("tight", where.clientWidth / rows.length < 62);
  const el = canvas(where, 236, rows.map(({ stage, count }) => `${stage} ${number(count)}`).join(", "));
  const wide = where.clientWidth / rows.length, bar = Math.min(64, wide * 0.62), middle = 132, tall = 144;
  const left = (i) => wide * i + (wide - bar) / 2, high = (share) => Math.max(share > 0 ? 2 : 0, Math.min(1, share) * tall);
  // Flow from a stage to the next reported one; a failure may come at any of them.
  const chain = rows.map((row, i) => [i, row]).filter(([, { stage, count }]) => count !== null && stage !== "failed");
  chain.slice(1).forEach(([i, { share }], n) => {
    const [from, { share: before }] = chain[n], a = left(from) + bar, b = left(i);
    el.append(svg("path", { class: "flows", d: `M${a} ${middle - high(before) / 2}L${b} ${middle - high(share) / 2}V${middle + high(share) / 2}L${a} ${middle + high(before) / 2}Z` }));
  });
  rows.forEach(({ stage, count, share }, i) => {
    const centre = wide * (i + 0.5), size = high(share);
    el.append(svg("rect", { class: count === null ? "silent" : stage.replace(" ", "-"), x: left(i), y: middle - size / 2, width: bar, height: size, rx: Math.min(3, size / 2), "fill-opacity": FADE[stage] || 1 }));
    el.append(svg("text", { x: centre, y: 14, "text-anchor": "middle" }, stage));
    el.append(svg("text", { x: centre, y: 34, "text-anchor": "middle", class: count === null ? "none" : "count " + stage.replace(" ", "-") }, number(count)));
    if (i && count !== null && state.view["sandboxes.funnel.shares"]) el.append(svg("text", { x: centre, y: 226, "text-anchor": "middle" }, format.text(share, "ratio")));
  });
}

// ---- bars and rows

function bar(name, value, width, state) {
  const li = make("li"), head = make("span", "", "row"), track = make("span", "", "bar"), fill = make("span");
  head.append(make("span", name), make("b", value));
  fill.style.width = width + "%";
  fill.dataset.state = state;
  track.append(fill);
  li.append(head, track);
  return li;
}

function cause({ cause, count, width, detail, at }) {
  const li = bar(cause, count, width, "failed");
  if (at) {
    const note = make("span", "newest, ", "note");
    note.append(aged(at, ""), detail ? ": " + detail : "");
    if (detail.length > 48) (note.title = detail), note.classList.add("long");
    li.append(note);
  }
  return li;
}

const quota = ({ resource, used, width, state }) => bar(resource, used, width, state);

// How long, counted on here.
function waited(at) {
  const el = make("span", at ? "" : "unknown");
  if (at) (el.dataset.since = at), (el.title = new Date(at * 1000).toLocaleString());
  return el;
}

// Foreign names: two lines, and the whole in the tooltip.
function word(text, name) {
  const el = make("span", text, name);
  if (String(text).length > 48) (el.title = text), el.classList.add("long");
  return el;
}

const stateWord = (state) => state.replaceAll("_", " ");

// `name`: the sandbox's name or trace, where it is another than its id.
function named({ id, name }, more) {
  const th = make("th"), shown = name === id ? "" : name, note = word([format.id(shown), more].filter(Boolean).join(" · "), "note");
  th.scope = "row";
  if (format.id(shown) !== shown) note.title = shown;
  th.append(word(id), note);
  return th;
}

function pending(row) {
  const tr = make("tr"), { state, provider_state: said } = row;
  tr.append(named(row, row.provider), cellOf("Image", word(row.image || "–"), make("span", row.image_cached === false ? "image not cached" : "", "note")),
    cellOf("Waiting for", waited(row.requested_at)), cellOf("State", make("span", stateWord(state)), word(said.toLowerCase() === state ? "" : said, "note")));
  return tr;
}

function dangling(row) {
  const tr = make("tr");
  tr.append(named(row, stateWord(row.state)), cellOf("Belongs to", word(row.run_key || "not reported")),
    cellOf("Age", waited(row.requested_at ?? row.started_at)), cellOf("Provider", word(row.provider)));
  return tr;
}

const OK = { running: "ok", failed: "critical", terminated: "ended" };
export function failure(row) {
  const tr = make("tr"), what = make("span", stateWord(row.cause || row.state), "pill"), when = make("span"), at = row.ended_at ?? row.seen_at;
  what.dataset.state = OK[row.state] || "unknown";
  if (at) (when.dataset.at = at), (when.title = new Date(at * 1000).toLocaleString());
  tr.append(named(row, row.provider), cellOf("What happened", what, word(row.detail, "note")), cellOf("When", when));
  return tr;
}

function source({ target, kind, up, seen_at: seen, error }) {
  const li = make("li"), word = make("span", up ? "Up" : "Down", "pill");
  word.dataset.state = up ? (error ? "watch" : "ok") : "critical";
  li.append(word, make("b", target), make("span", kind === target ? "" : kind, "kind"));
  li.append(error ? make("span", error, "error") : aged(seen, "no answer yet"));
  return li;
}

/** @type {[string, string, (row: any) => Node][]} */
const TABLES = [["sandbox_sources.", "box-sources", source], ["failure_causes.", "box-causes", cause], ["quotas.", "box-quota", quota],
  ["pending.", "box-pending", pending], ["dangling.", "box-dangling", dangling], ["failed_boxes.", "box-failures", failure]];
export const newestFailures = () => list("failed_boxes.").map(failure);

function rows(cells) {
  for (const [prefix, where, draw] of TABLES) {
    const el = document.querySelector(`[data-rows=${where}]`);
    // Search results stay until the field is empty.
    if (!el || el.dataset.found || !("sandboxes.mode" in cells || touched(cells, prefix))) continue;
    const found = list(prefix);
    el.replaceChildren(...found.map(draw));
    // A table without rows is hidden.
    const table = el.closest("table");
    if (table) table.hidden = !found.length;
  }
}

// Uses the address by which this browser reached the server; the trainer's machine most likely can use it, too.
function recipe() {
  const address = location.origin + by("app").dataset.base.replace(/\/$/, "");
  document.querySelector("[data-code=recipe]").textContent = (state.view["sandboxes.recipe"] || "").replace("@here@", address);
}

drawers.push((cells) => {
  if (!("sandboxes.mode" in state.view)) return;
  rows(cells);
  readable(box("heat"), heat, look);
  fitted(box("funnel"), funnel);
  if ("sandboxes.recipe" in cells) recipe();
  if ("sandboxes.funnel" in cells || "sandboxes.funnel.shares" in cells || "sandboxes.mode" in cells) funnel();
  if (Object.keys(cells).some((key) => key.startsWith("spin_ups."))) heat();
});
painters.push(heat);
