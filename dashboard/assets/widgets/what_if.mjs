// What-if: native sliders whose state is the address; the server computes the result.
import { list, touched } from "../core/cells.mjs";
import { all, by, cellOf, make, say } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { poke } from "../core/live.mjs";
import { query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";

const here = () => state.boot && state.boot.key === "what-if";
const cell = (name) => state.view["what_if_slider." + name];
const asked = (name) => new URLSearchParams(location.search).get(name);

// ---- text of a value

function words(name, value, { unit }) {
  if (unit === "ratio") return format.text(value, "ratio");
  const size = format.number(Math.abs(value));
  if (name === "move_gpus") return value ? `${size} to the ${value > 0 ? "generator" : "trainer"}` : "none";
  if (name === "add_engines") return value ? (value > 0 ? "+" : "−") + size : "none";
  return `${exact(value)} ${unit}`;
}
// Caps are shown exactly: 16,384, not 16.4k.
const exact = (value) => Number(value.toFixed(2)).toLocaleString("en");

// ---- one slider

function build(place) {
  const name = place.dataset.slider, label = make("label", place.dataset.title), value = make("output");
  const range = make("input"), head = make("div", "", "row"), track = make("div", "", "track"), mark = make("i", "", "today");
  const foot = make("div", "", "row foot"), back = make("button", "", "link back");
  range.type = "range";
  range.id = label.htmlFor = "wi-" + name;
  range.setAttribute("aria-describedby", "wi-about-" + name);
  const about = make("span", place.dataset.about, "note");
  about.id = "wi-about-" + name;
  back.type = "button";
  mark.title = "current value";
  head.append(label, value);
  track.append(range, mark);
  foot.append(about, back);
  place.replaceChildren(head, track, foot);
  range.addEventListener("input", () => change(name, Number(range.value)));
  back.addEventListener("click", () => (change(name, null), range.focus()));
  return range;
}

function change(name, value) {
  const found = cell(name);
  // Nearest to today within half a step is today: its value need not be on the grid.
  const same = value === null || found === undefined || Math.abs(value - found.today) < found.step / 2;
  history.replaceState(history.state, "", location.pathname + query({ [name]: same ? null : String(Number(value.toFixed(4))) }) + location.hash);
  show(name);
  reset();
  poke();
}

function show(name) {
  const place = document.querySelector(`[data-slider="${name}"]`), found = cell(name);
  if (!place || !found) return;
  const range = place.querySelector("input") || build(place), known = found.today !== null;
  const wanted = asked(name), value = known && wanted !== null && wanted !== "" && isFinite(Number(wanted)) ? Number(wanted) : found.today;
  // A link may ask for more than a slider spans.
  const low = known ? Math.min(found.low, value) : found.low, high = known ? Math.max(found.high, value) : found.high;
  const changed = known && Math.abs(value - found.today) >= found.step / 2;
  Object.assign(range, { min: low, max: high, step: "any", disabled: !known });
  range.dataset.step = found.step;
  range.value = known ? value : low;
  range.setAttribute("aria-valuetext", known ? words(name, value, found) + (changed ? `, now ${words(name, found.today, found)}` : ", as today") : "unknown");
  place.dataset.state = known ? (changed ? "changed" : "today") : "unknown";
  place.querySelector("output").textContent = known ? words(name, value, found) : "unknown";
  place.style.setProperty("--at", String(known && high > low ? (found.today - low) / (high - low) : 0));
  place.style.setProperty("--value", String(known && high > low ? (value - low) / (high - low) : 0));
  const about = place.querySelector(".foot .note"), back = place.querySelector(".back");
  about.textContent = known ? place.dataset.about : found.needs;
  back.hidden = !changed;
  back.textContent = changed ? "now " + words(name, found.today, found) : "";
  back.setAttribute("aria-label", `${back.textContent}: reset ${place.dataset.title}`);
}

// Whole steps from wherever today is: "any" keeps today's own value, which need not be on a grid.
document.addEventListener("input", (event) => {
  const range = event.target.closest("[data-slider] input");
  if (!range) return;
  const name = range.id.slice(3), found = cell(name), step = Number(range.dataset.step);
  if (found && Math.abs(range.value - found.today) >= step / 2) range.value = Number((Math.round(range.value / step) * step).toFixed(4));
}, true);

const MOVES = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
document.addEventListener("keydown", (event) => {
  const range = event.target.closest("[data-slider] input");
  if (!range || !(event.key in MOVES)) return;
  event.preventDefault();
  const step = Number(range.dataset.step), grid = (MOVES[event.key] > 0 ? Math.floor : Math.ceil)(Number((range.value / step).toFixed(6)));
  range.value = Number(((grid + MOVES[event.key]) * step).toFixed(4));
  change(range.id.slice(3), Number(range.value));
});

const names = () => all("[data-slider]").map((place) => place.dataset.slider);
function reset() {
  by("wi-reset").hidden = !names().some((name) => asked(name) !== null);
}
document.addEventListener("click", (event) => {
  if (!event.target.closest("#wi-reset")) return;
  history.pushState({}, "", location.pathname + query(Object.fromEntries(names().map((name) => [name, null]))));
  say("wi-said", "Reset to the current values.");
  everything();
  poke();
});
function everything() {
  names().forEach(show);
  reset();
}
window.addEventListener("popstate", () => {
  if (!here()) return;
  everything();
  poke();
});

// ---- the result

function side(found) {
  const el = make("div", "", "side-of of-" + found.side), head = make("div", "", "row"), bar = make("div", "", "could");
  el.dataset.limits = found.limits ? "1" : "";
  head.append(make("b", found.title), make("span", found.limits ? "the limit" : "", "pill"));
  head.lastChild.dataset.state = "watch";
  const fill = make("span"), tick = make("i", "", "today");
  fill.style.width = (found.to ?? 0) + "%";
  tick.style.left = (found.from ?? 0) + "%";
  tick.hidden = found.from === null;
  tick.title = "now " + found.now;
  bar.append(fill, tick);
  const note = make("span", found.then === found.now ? found.now : `${found.then}, now ${found.now}`, "note");
  head.append(note);
  el.append(head, bar);
  return el;
}

function row({ key, title, now, then, change, state, why }) {
  const tr = make("tr"), th = make("th", title);
  th.scope = "row";
  tr.dataset.key = key;
  const after = make("span", then || "–", "num"), word = make("span", change, "delta");
  word.dataset.state = state;
  tr.append(th, cellOf("Now", make("span", now)), cellOf("Then", after), cellOf("Change", word));
  if (why) th.append(make("span", "unknown: " + why, "note"));
  return tr;
}

function missing(text) {
  const cut = text.indexOf(": ");
  return [make("dt", cut < 0 ? text : text.slice(0, cut)), make("dd", cut < 0 ? "" : text.slice(cut + 2))];
}

drawers.push((cells) => {
  if (!("what_if.mode" in state.view) || !by("wi-reset")) return;
  if (Object.keys(cells).some((key) => key.startsWith("what_if_slider."))) everything();
  const put = (rows, found) => document.querySelector(`[data-rows=${rows}]`).replaceChildren(...found);
  if (touched(cells, "what_if_side.")) document.querySelector("[data-draw=wi-sides]").replaceChildren(...list("what_if_side.").map(side));
  if (touched(cells, "what_if_row.")) put("wi-rows", list("what_if_row.").map(row));
  if (touched(cells, "assumptions.")) put("wi-assumed", list("assumptions.").map((text) => make("li", text)));
  if (touched(cells, "missing.")) put("wi-missing", list("missing.").flatMap(missing));
});
