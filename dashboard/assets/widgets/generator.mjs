// Generator: the fleet's heat map as SVG, outliers, room in the caches, and a row per engine. Only text nodes.
import { list, touched } from "../core/cells.mjs";
import { aged, all, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { poke } from "../core/live.mjs";
import { query } from "../core/nav.mjs";
import { drawers, painters, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { canvas, fitted, readable, svg, timeTicks, when } from "./svg.mjs";

const LEVELS = 12, TOP = 6, AXIS = 20, RIGHT = 8, LETTER = 6.9;
const WORDS = { down: "down", hung: "hung", silent: "silent", stale: "idle", paused: "paused", asleep: "asleep" };
const shown = () => state.boot && state.boot.key === "generator";
const box = () => document.querySelector("[data-draw=fleet]");

// ---- heat map

// Few engines get rows that can be read, many get rows that fit.
const tallOf = (rows) => (rows <= 8 ? 22 : rows <= 20 ? 16 : rows <= 36 ? 12 : 9);
const said = (value) => (value === undefined || value === null ? "no data" : state.view["engine_heat.metric"] === "kv" ? format.text(value, "ratio") : format.number(value) + (state.view["engine_heat.metric"] === "preemptions" ? " per minute" : state.view["engine_heat.metric"] === "tokens" ? " tokens/s" : ""));

function columns() {
  const found = [], width = 1000 * state.view["engine_heat.width"];
  for (const [key, cell] of Object.entries(state.view)) {
    const at = /^engine_heat\.(\d+)$/.exec(key);
    if (at) found.push([Number(at[1]) * width + state.tz, cell]);
  }
  return found;
}

function draw() {
  const where = box(), names = state.view["engine_heat.names"] || [];
  if (!where || !shown()) return;
  where.hidden = !names.length || Boolean(state.view["engine_heat.none"]);
  if (where.hidden || !where.clientWidth) return;
  const place = layout(where, names), el = canvas(where, place.bottom + AXIS, summary(names));
  el.append(labels(names, place), ...cells(names, place));
  where.look = place;
  shades();
}

function layout(where, names) {
  const longest = Math.max(...names.map(({ name, state }) => (name + (WORDS[state] ? " " + state : "")).length));
  const left = Math.round(Math.min(where.clientWidth < 480 ? 104 : 168, Math.max(52, 12 + LETTER * longest)));
  const tall = tallOf(names.length), wide = where.clientWidth - left - RIGHT, [start, end] = range(), bottom = TOP + names.length * tall;
  return { left, wide, tall, start, end, bottom, rows: names.length, width: 1000 * state.view["engine_heat.width"], x: (ms) => left + (wide * (ms - start)) / (end - start) };
}

const cut = (words, most) => (words.length > most ? words.slice(0, Math.max(1, most - 1)) + "…" : words);
function labels(names, place) {
  const axes = svg("g", { class: place.tall < 12 ? "axes tight" : "axes" }), most = Math.floor((place.left - 10) / LETTER);
  names.forEach(({ name, state }, i) => {
    const y = TOP + i * place.tall;
    axes.append(svg("line", { x1: place.left, x2: place.left + place.wide, y1: y - 0.5, y2: y - 0.5 }));
    const words = WORDS[state] ? `${cut(name, most - state.length - 1)} ${state}` : cut(name, most);
    const el = svg("text", { x: place.left - 8, y: y + place.tall / 2 + (place.tall < 12 ? 3 : 4), "text-anchor": "end", class: state }, words);
    el.append(svg("title", {}, name));
    axes.append(el);
  });
  timeTicks(axes, place);
  return axes;
}

// A path per shade: thousands of rectangles would cost more than they show.
function cells(names, place) {
  const paths = Array.from({ length: LEVELS + 1 }, () => ""), top = state.view["engine_heat.top"] || 1;
  for (const [from, values] of columns()) {
    const left = Math.max(place.left, place.x(from)), right = Math.min(place.left + place.wide, place.x(from + place.width));
    if (right - left < 0.5) continue;
    const w = Math.max(1, right - left - 1).toFixed(1);
    values.forEach((value, i) => {
      if (value === null || i >= names.length) return;
      const level = Math.round(LEVELS * Math.min(1, value / top));
      paths[level] += `M${left.toFixed(1)} ${TOP + i * place.tall}h${w}v${place.tall - 1}h-${w}z`;
    });
  }
  return paths.map((d, level) => svg("path", { d, class: "cell", "fill-opacity": opacity(level) }));
}
// Steeper than the number: of a cache that is 90 % full and one that is full, the difference is what matters.
const opacity = (level) => (0.07 + 0.93 * (level / LEVELS) ** 2).toFixed(2);

function summary(names) {
  const ill = names.filter(({ state }) => state !== "up").map(({ name, state }) => name + (WORDS[state] ? " " + state : ""));
  return `${state.view["engine_heat.title"]} of ${names.length} engines over time` + (ill.length ? `; outliers: ${ill.slice(0, 6).join(", ")}` : "");
}

function shades() {
  const where = document.querySelector("[data-shades=fleet]"), top = state.view["engine_heat.top"], key = `${state.view["engine_heat.metric"]} ${top}`;
  if (where.dataset.key === key) return;
  where.dataset.key = key;
  where.replaceChildren(make("span", "0"), make("i"), make("span", said(top)), make("span", "blank = no data", "blank"));
}

function look(event, place, where) {
  const area = where.getBoundingClientRect(), x = event.clientX - area.left, row = Math.floor((event.clientY - area.top - TOP) / place.tall);
  const name = (state.view["engine_heat.names"] || [])[row];
  if (x < place.left || x > place.left + place.wide || !name) return;
  const ms = place.start + ((x - place.left) / place.wide) * (place.end - place.start), column = Math.floor((ms - state.tz) / place.width);
  return [when(column * place.width + state.tz, place), `${name.name}: ${said((state.view["engine_heat." + column] || [])[row])}`];
}

function choose() {
  for (const button of all("[data-heat]")) button.setAttribute("aria-pressed", String(button.dataset.heat === state.view["engine_heat.metric"]));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-heat]");
  if (!button || !shown() || button.dataset.heat === state.view["engine_heat.metric"]) return;
  const { heat } = button.dataset;
  history.replaceState(history.state, "", location.pathname + query({ heat: heat === "kv" ? null : heat }) + location.hash);
  poke();
});

// ---- speed

const SPEED = { left: 52, right: 14, top: 18, tall: 150, axis: 22 };
function speed() {
  const where = document.querySelector("[data-draw=speed]"), found = state.view.engine_speed;
  if (!where || !shown()) return;
  where.hidden = !found;
  if (!found || !where.clientWidth) return;
  const { left, right, top, tall, axis } = SPEED, wide = where.clientWidth - left - right, [least, likely, most] = found.laws;
  const edges = found.x.map((_, i) => [Math.min(least[i], likely[i], most[i]), Math.max(least[i], likely[i], most[i])]);
  const step = tidy(Math.max(...edges.map(([, high]) => high), ...found.points.map(([, value]) => value)) / 3), high = 3 * step;
  const x = (value) => left + (wide * value) / found.most, y = (value) => top + tall - (tall * Math.min(value, high)) / high;
  const el = canvas(where, top + tall + axis, spoken(found)), axes = svg("g", { class: "axes" });
  for (let i = 0; i <= 3; i++) {
    axes.append(svg("line", { x1: left, x2: left + wide, y1: y(i * step), y2: y(i * step) }));
    axes.append(svg("text", { x: left - 6, y: y(i * step) + 4, "text-anchor": "end" }, format.number(i * step)));
  }
  for (const part of wide < 480 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) axes.append(svg("text", { x: x(part * found.most), y: top + tall + 16, "text-anchor": part === 1 ? "end" : "middle" }, format.number(part * found.most) + (part === 1 ? " requests" : "")));
  const at = (rows) => rows.map(([value, height]) => `${x(value).toFixed(1)} ${y(height).toFixed(1)}`).join("L");
  const below = found.x.map((value, i) => [value, edges[i][0]]), above = found.x.map((value, i) => [value, edges[i][1]]).reverse();
  el.append(axes, svg("path", { d: `M${at([...below, ...above])}z`, class: "band" }), svg("path", { d: "M" + at(found.x.map((value, i) => [value, likely[i]])), class: found.fitted ? "law" : "law general" }));
  if (!found.fitted) el.append(svg("text", { x: left + wide, y: y(likely[likely.length - 1]) + 16, "text-anchor": "end", class: "tag" }, "general"));
  for (const [name, value, height] of found.marks.filter(([, value]) => value <= found.most)) el.append(...mark(name, x(value), y(height), top, tall, left + wide));
  for (const [value, height] of found.points.filter(([value]) => value <= found.most)) {
    const dot = svg("circle", { cx: x(value), cy: y(height), r: 4 });
    dot.append(svg("title", {}, `${format.number(value)} requests: ${format.number(height)} tokens/s`));
    el.append(dot);
  }
}

// "best" stands left of its line and "now" right of it, so that both are read where they are close.
function mark(name, x, y, top, tall, end) {
  const before = name === "best" ? x > 100 : x > end - 40;
  return [svg("line", { x1: x, x2: x, y1: top, y2: top + tall, class: "at-" + name }), svg("text", { x: x + (before ? -5 : 5), y: name === "best" ? top - 5 : top + tall - 6, "text-anchor": before ? "end" : "start", class: "tag" }, name)];
}

function tidy(value) {
  const size = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((part) => part * size).find((part) => part >= value) || value;
}
const spoken = (found) => "Tokens/s per engine by requests; " + [...found.points.map(([value, height]) => `${format.number(value)} requests: ${format.number(height)} tokens/s`), ...found.marks.map(([name, value]) => `${name}: ${format.number(value)} requests`)].join(", ");

// ---- lists

function health({ count, state: words, health }) {
  const li = make("li"), pill = make("span", `${count} ${words}`, "pill");
  pill.dataset.state = health;
  li.append(pill);
  return li;
}

function complaint({ engine: name, text: words, state: health }) {
  const li = make("li"), mark = make("i", "", "mark");
  mark.dataset.state = health;
  const who = make("b", name);
  who.title = name;
  li.append(mark, who, make("span", words, "words"));
  return li;
}

function room({ label, value, width, kind }) {
  const li = make("li"), row = make("span", "", "row"), bar = make("span", "", "bar"), fill = make("span");
  row.append(make("span", label), make("b", value));
  fill.style.width = width + "%";
  fill.dataset.kind = kind;
  bar.append(fill);
  li.append(row, bar);
  return li;
}

function engine({ name, state: words, role, health, running, waiting, kv, tokens, prefix, preempted, version, seen, odd }) {
  const tr = make("tr"), head = make("th"), who = make("span", name, "long"), pill = make("span", words, "pill");
  head.scope = "row";
  who.title = name;
  pill.dataset.state = health;
  head.append(who);
  if (role) head.append(make("span", role, "unit"));
  const cell = (label, text, ...what) => {
    const td = cellOf(label, make("span", text || "–"));
    if (odd.some((one) => what.includes(one))) td.className = "odd", td.append(make("span", "outlier", "sr"));
    return td;
  };
  tr.append(head, cellOf("State", pill), cell("Running", running, "running"), cell("Waiting", waiting, "waiting"), cell("KV cache", kv, "KV cache"),
    cell("Tokens/s", tokens, "tokens/s per request"), cell("Prefix hits", prefix), cell("Preempted/min", preempted, "preemptions per minute"), cell("Weights", version, "weights"),
    cellOf("Last read", aged(seen, "not in the last 5 min")));
  return tr;
}

/** @type {[string, string, (row: any) => Node][]} */
const LISTS = [["gen-states", "engine_states.", health], ["gen-sick", "outliers.", complaint], ["gen-room", "kv_room.", room], ["engines", "engine_rows.", engine]];

drawers.push((cells) => {
  if (!("head.generator" in state.view)) return;
  for (const [name, prefix, row] of LISTS) {
    const el = document.querySelector(`[data-rows=${name}]`);
    if (!el || !("head.generator" in cells || touched(cells, prefix))) continue;
    const found = list(prefix), table = el.closest("table");
    el.replaceChildren(...found.map(row));
    if (table) table.hidden = !found.length;
  }
  readable(box(), draw, look);
  fitted(document.querySelector("[data-draw=speed]"), speed);
  if ("engine_speed" in cells || "head.generator" in cells) speed();
  if ("engine_heat.metric" in cells) choose();
  if (Object.keys(cells).some((key) => key.startsWith("engine_heat."))) draw();
});
painters.push(draw);
