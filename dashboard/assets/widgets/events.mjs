// Events over time (`dashboard/charts/events.py`): the lane above the charts has all of them; a chart has the alerts on its
// own signals.
import { all, make } from "../core/dom.mjs";
import { path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { cross, leave, reads } from "./cursor.mjs";
import { across, byStep, toMs, toX } from "./step_axis.mjs";
import { over, repaint, svg, timeTicks } from "./svg.mjs";
import { href, verdictAt } from "./verdicts.mjs";

// Marks closer than this are drawn as one, pixels: in the lane, where they are links, and on a chart.
const APART = 24, CLOSE = 10;
// A link to an event shows this many seconds before and after it.
const AROUND = 300;
// Half the size of a glyph, length of an alert's stem on a chart, width of a bar of weight updates, pixels.
const HALF = 4, STEM = 14, BAR = 5;

const triangle = (x, y) => `M${x - HALF} ${y}h${2 * HALF}l${-HALF} ${1.6 * HALF}z`;
const diamond = (x, y) => `M${x} ${y}l${HALF} ${HALF}l${-HALF} ${HALF}l${-HALF} ${-HALF}z`;
const square = (x, y) => `M${x - 3} ${y + 1}h6v6h-6z`;
const circle = (x, y) => `M${x - 3} ${y + HALF}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z`;
// Name, text of the key, glyph. Of events that are drawn as one, the mark is that of the last name here.
/** @type {[string, string, (x: number, y: number) => string][]} */
const KINDS = [["saved", "checkpoint or evaluation", square], ["changed", "change of configuration or behaviour", circle], ["restarted", "restart, fault or GPU error", diamond],
  ["warned", "alert", triangle], ["fired", "critical alert", triangle]];
const NAMES = { checkpoint: "saved", eval: "saved", restart: "restarted", resume: "restarted", fault: "restarted", hardware: "restarted" };
let known = null;

// { updates: [[local ms, version or null], ...], events: [{ ms, kind, words, signal }, ...] }, oldest first.
function found() {
  if (known) return known;
  const updates = [], events = [], width = state.view["weight_updates.width"];
  for (const [key, cell] of Object.entries(state.view)) {
    const [, what, column] = /^(weight_updates|other_events|fired_alerts)\.(-?\d+)$/.exec(key) || [];
    if (column) for (const [after, ...rest] of cell) {
      const ms = 1000 * (Number(column) * width + after) + state.tz;
      if (what === "weight_updates") updates.push([ms, rest[0]]);
      else if (what === "other_events") events.push({ ms, kind: NAMES[rest[0]] || "changed", words: rest[1], signal: rest[2] ? "drift:" + rest[2] : "" });
      else events.push({ ms, kind: rest[1] === "critical" ? "fired" : "warned", words: `${rest[0]} fired`, signal: rest[2] });
    }
  }
  return (known = { updates: updates.sort((a, b) => a[0] - b[0]), events: events.sort((a, b) => a.ms - b.ms) });
}

// The policy version at a time (local ms); null where it is not known.
export function updateAt(ms) {
  const last = state.view["weight_updates.whole"] ? found().updates.findLast(([at, version]) => at <= ms && version !== null) : undefined;
  return last ? last[1] : null;
}

// The first of a number of events that are drawn as one, by position in pixels: [[x, [event, ...]], ...].
export function grouped(events, place, apart) {
  const groups = [];
  for (const event of events) {
    const x = place(event.ms), last = groups[groups.length - 1];
    if (last && x - last[0] < apart) last[1].push(event);
    else groups.push([x, [event]]);
  }
  return groups;
}

// ---- the lane

export const laneOf = () => document.querySelector(`[data-place="${state.boot ? state.boot.key : ""}"] [data-lane]`);
const inside = ({ ms }) => ms >= range()[0] && ms <= range()[1];
const words = (events) => events.slice(0, 4).map((event) => event.words).concat(events.length > 4 ? [`and ${events.length - 4} more`] : []);
let places = [];

const near = (x) => places.find(([place]) => Math.abs(place - x) <= APART / 2);
// The part of the time shown that is before a time, and back.
const part = (ms, [from, to] = across(...range())) => (toX(ms) - from) / (to - from);

// What the lane has at a time: [[text, colour of its verdict or undefined], ...].
export function laneAt(ms) {
  const found = near(part(ms) * laneOf().querySelector(".lane-rows").clientWidth);
  return [...(found ? words(found[1]).map((one) => [one]) : []), ...verdictAt(ms)];
}

function hover(event) {
  const lane = laneOf(), box = lane.querySelector(".lane-rows").getBoundingClientRect(), [from, to] = across(...range());
  const x = event.clientX - box.left, found = near(x);
  if (x < 0 || x > box.width) return leave();
  cross(found ? found[1][0].ms : toMs(from + (x / box.width) * (to - from)), lane, event.clientX, event.clientY);
}

function pin() {
  const li = make("li"), link = make("a"), glyph = svg("svg", { width: 12, height: 12, "aria-hidden": "true" });
  glyph.append(svg("path"));
  link.append(glyph);
  link.dataset.in = "1";
  link.addEventListener("focus", () => {
    const box = link.getBoundingClientRect();
    cross(li.ms, laneOf(), box.left + box.width / 2, box.bottom);
  });
  link.addEventListener("blur", leave);
  li.append(link);
  return li;
}

function fill(li, [x, events]) {
  const [name, , glyph] = KINDS.findLast(([kind]) => events.some((event) => event.kind === kind)), link = li.firstChild, ts = (events[0].ms - state.tz) / 1000;
  li.ms = events[0].ms;
  li.style.left = x + "px";
  link.className = name;
  link.href = events.some((event) => event.signal) ? path("alerts") + query({}, true) : href(ts - AROUND, ts + AROUND);
  link.setAttribute("aria-label", words(events).join(", "));
  link.querySelector("path").setAttribute("d", glyph(6, 2));
}

// How many weight updates there are, in bars of a few pixels, and times below them.
function density(where, wide, place) {
  const counts = new Array(Math.ceil(wide / BAR)).fill(0), tall = 8;
  for (const [ms] of found().updates) if (inside({ ms })) counts[Math.min(counts.length - 1, Math.floor(place(ms) / BAR))]++;
  const most = Math.max(1, ...counts), bars = counts.map((n, i) => (n ? `M${i * BAR} ${tall}v${-Math.max(2, (tall * n) / most).toFixed(1)}h${BAR - 1}V${tall}z` : "")).join("");
  const el = svg("svg", { height: where.clientHeight, "aria-hidden": "true" }), [start, end] = range();
  el.append(svg("path", { d: bars }));
  if (!byStep()) timeTicks(el, { start, end, x: place, wide, bottom: tall, left: 0 });
  where.replaceChildren(el);
}

function key(name, glyph, text) {
  const span = make("span", "", "item"), el = svg("svg", { width: 12, height: 12, "aria-hidden": "true", class: name });
  el.append(svg("path", { d: glyph }));
  span.append(el, text);
  return span;
}

// How many weight updates are in the time shown, and of which versions.
function updatesNote() {
  if (!state.view["weight_updates.whole"]) return state.view["weight_updates.note"] || "";
  const shown = found().updates.filter(([ms]) => inside({ ms })), versions = shown.map(([, version]) => version).filter((one) => one !== null);
  if (!shown.length) return "";
  const [low, high] = [Math.min(...versions), Math.max(...versions)].map((one) => "v" + one.toLocaleString("en"));
  return `${shown.length.toLocaleString("en")} weight update${shown.length === 1 ? "" : "s"}${versions.length > 1 ? `, ${low} to ${high}` : ""}`;
}

function paintLane(lane) {
  const area = lane.querySelector(".lane-rows"), wide = area.clientWidth, list = lane.querySelector(".pins");
  const place = (ms) => wide * part(ms), shown = found().events.filter(inside);
  if (!wide) return;
  places = grouped(shown, place, APART);
  while (list.children.length > places.length) list.lastChild.remove();
  while (list.children.length < places.length) list.append(pin());
  places.forEach((one, i) => fill(list.children[i], one));
  density(lane.querySelector(".density"), wide, place);
  const kinds = KINDS.filter(([name]) => shown.some((event) => event.kind === name)), note = updatesNote(), keys = lane.querySelector(".keys");
  const said = kinds.map(([name]) => name).join(" ") + note;
  if (keys.dataset.said !== said) keys.replaceChildren(...kinds.map(([name, text, glyph]) => key(name, glyph(6, 2), text)), ...(note ? [key("update", "M1 11V5h4v6zM7 11V2h4v9z", note)] : []));
  keys.dataset.said = said;
  reads(area, hover);
}

// ---- a chart's own alerts, and the changes of its behaviour

const signals = (el) => new Set([...all(".item[data-signal]", el).map((item) => item.dataset.signal), "drift:" + el.dataset.drift]);
export const alertsOf = (el) => found().events.filter((event) => event.signal && inside(event) && signals(el).has(event.signal));
export const alertsAt = (el, ms, perPixel) => words(alertsOf(el).filter((event) => Math.abs(event.ms - ms) <= (CLOSE / 2) * perPixel));

function paint() {
  if (!state.boot || state.boot.error || !state.view["weight_updates.width"]) return;
  const lane = laneOf();
  if (lane) paintLane(lane);
  for (const name of ["warned", "fired"]) over("events-" + name, name, (x, top, bottom, el) => {
    const own = grouped(alertsOf(el).filter((event) => event.kind === name), (ms) => Math.round(x(ms)) + 0.5, CLOSE);
    return own.map(([at]) => `M${at} ${top}V${Math.min(bottom, top + STEM)}${triangle(at, top)}`).join("");
  });
  // A change of behaviour parts the chart: the line goes down to its axis.
  over("events-changed", "changed", (x, top, bottom, el) =>
    alertsOf(el).filter((event) => event.kind === "changed").map((event) => `M${Math.round(x(event.ms)) + 0.5} ${top}V${bottom}${circle(Math.round(x(event.ms)) + 0.5, top)}`).join(""));
}

drawers.push((cells) => {
  if (!Object.keys(cells).some((key) => /^(weight_updates|other_events|fired_alerts)\./.test(key))) return;
  known = null;
  paint();
});
repaint(paint);
