// The time shown: the zoom in the address, as absolute times, so that a link opens the same view, and the browser's "back"
// undoes it; and the range control of the header.
import { clockOf } from "./cells.mjs";
import { by, make } from "./dom.mjs";
import { asked, now } from "./live.mjs";
import { navigated, query } from "./nav.mjs";
import { state } from "./state.mjs";
import { loaded, range, unzoom, zoomTo } from "../widgets/chart.mjs";
import { zone } from "../widgets/chart_data.mjs";
import { dialog, filling } from "../widgets/chart_menu.mjs";

const WAIT = 400;
let later = null;

const held = () => Boolean(history.state && history.state.zoom);
// Epoch seconds; of a short time to the tenth.
export function moments() {
  const [start, end] = range(), places = end - start < 120000 ? 1 : 0;
  return { start: ((start - state.tz) / 1000).toFixed(places), end: ((end - state.tz) / 1000).toFixed(places) };
}

// One history entry per zoom; a further zoom replaces it.
export function remember() {
  clearTimeout(later);
  later = setTimeout(() => {
    if (!state.zoom || !state.boot || state.boot.error) return;
    const href = location.pathname + query(moments()) + location.hash;
    if (held()) history.replaceState(history.state, "", href);
    else history.pushState({ zoom: true }, "", href);
    navigated();
  }, WAIT);
}

// The address without the zoom, as the server knows it: zoomed charts still update.
export function unzoomed(asked) {
  if (!state.zoom) return location.search;
  const query = new URLSearchParams(location.search), before = new URLSearchParams(asked);
  for (const name of ["start", "end"])
    if (before.has(name)) query.set(name, before.get(name));
    else query.delete(name);
  const text = query.toString();
  return text ? "?" + text : "";
}

export function reset() {
  const base = location.pathname + unzoomed(asked()) + location.hash, pushed = held();
  clearTimeout(later);
  unzoom();
  // Goes back if the zoom was pushed, so that "back" does not lead into the zoom again.
  if (pushed && !filling()) history.back();
  else if (pushed) history.replaceState({}, "", base);
  navigated();
}

window.addEventListener("popstate", () => {
  clearTimeout(later);
  if (state.zoom && !held()) unzoom();
});

// Changes how charts are shown: updates the address and triggers a load by Dash.
export function show(changes) {
  history.pushState({}, "", location.pathname + query(changes) + location.hash);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

// ---- the range control

// An absolute time, or a zoom: the page is as of its end.
const isPast = () => Boolean(state.boot && !state.boot.error && (state.zoom || typeof state.boot.at === "number"));

// "13:24 to 13:34", with days where they are not today, and with seconds of a short time.
export function rangeWords([start, end]) {
  const [from, to] = [start, end].map((ms) => clockOf((ms - state.tz) / 1000, end - start < 120000 ? 19 : 16));
  const day = from.length === to.length && from.includes(" ") && from.split(" ")[0] === to.split(" ")[0];
  return `${from} to ${day ? to.split(" ")[1] : to}`;
}

export function showRange() {
  const past = isPast(), chips = by("modes"), query = new URLSearchParams(location.search), found = [];
  by("app").dataset.zoom = past ? "on" : "";
  if (past) by("past-range").textContent = rangeWords(range());
  by("unzoom").textContent = state.boot && state.boot.over ? "Whole run" : "Back to live";
  const drawn = state.boot && !state.boot.error && state.boot.drawn;
  if (drawn && state.boot.behind) found.push([`vs ${state.boot.behind[0]}`, { over: null, align: null }]);
  if (drawn && query.get("axis") === "step") found.push(["By step", { axis: null }]);
  const said = found.map(([words]) => words).join();
  if (chips.dataset.said === said) return;
  chips.dataset.said = said;
  chips.replaceChildren(...found.map(([words, changes]) => chip(words, changes)));
}

function chip(words, changes) {
  const button = Object.assign(make("button"), { type: "button", title: words });
  button.setAttribute("aria-label", `Remove: ${words}`);
  button.append(make("span", words), make("i", "×"));
  button.addEventListener("click", () => show(changes));
  return button;
}

// Twice a time around its middle, within what there is.
export function wider(start, end, first, last) {
  const to = Math.min(end + (end - start) / 2, last);
  return [Math.max(to - 2 * (end - start), first), to];
}

// A zoom goes up to all that is loaded; an absolute time up to the present.
function zoomOut() {
  const [first, last] = state.zoom ? loaded() : [0, 1000 * now() + state.tz], [start, end] = wider(range()[0], range()[1], first, last);
  if (!state.zoom) return absolute(start, end);
  if (start <= first && end >= last) return reset();
  zoomTo([start, end]);
}

function absolute(start, end) {
  unzoom();
  show({ start: ((start - state.tz) / 1000).toFixed(0), end: ((end - state.tz) / 1000).toFixed(0) });
}

function backToLive() {
  if (typeof state.boot.at !== "number") return reset();
  unzoom();
  show({ start: null, end: null });
}

// Start and end by the keyboard.
function pick() {
  const form = make("form", "", "times"), error = make("p", "", "error"), apply = make("button", "Show", "more"), fields = ["Start", "End"].map((words, i) => {
    const label = make("label", words), field = make("input");
    Object.assign(field, { type: "datetime-local", step: "1", required: true, value: new Date(range()[i]).toISOString().slice(0, 19) });
    label.append(field);
    form.append(label);
    return field;
  });
  error.setAttribute("role", "alert");
  form.append(make("p", `Local time: ${[...new Set([Intl.DateTimeFormat().resolvedOptions().timeZone, zone()])].join(", ")}`, "note"), error, apply);
  const sheet = dialog("Time range", form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [start, end] = fields.map((field) => Date.parse(field.value + "Z"));
    if (!(end > start)) return void (error.textContent = "The end must be after the start.");
    sheet.close();
    absolute(start, end);
  });
  fields[0].focus();
}

const CLICKS = { unzoom: backToLive, "zoom-out": zoomOut, pick };
document.addEventListener("click", (event) => {
  const button = event.target.closest("#time > button, #past > button");
  if (button && state.boot && !state.boot.error) CLICKS[button.id]();
});
