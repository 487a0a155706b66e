// Charts that a user chose, at the end of Overview after those of the configuration: added in Explore, ordered here by
// dragging or by the arrow keys on their handle.
import { apiPath, readJson, reason } from "../core/api.mjs";
import { by, make } from "../core/dom.mjs";
import { drawers, state } from "../core/state.mjs";
import { dialog, toast } from "./chart_menu.mjs";
import { idOf, showCharts } from "./own_chart.mjs";
import { keepUserName, userName } from "./silence.mjs";
import { svg } from "./svg.mjs";

/** @typedef {{ signal?: string, metric?: string, title?: string, split?: string, log?: boolean }} OwnPanel */
/** @type {{ declared: OwnPanel[], own: OwnPanel[] }} */
let known = { declared: [], own: [] };
let shown = null, dragged = "";
// `kept`: what the server answered last. `saves`: one at a time, in their order.
let kept = known, saves = Promise.resolve(), turn = 0;

/** @param {OwnPanel} panel @returns {import("./own_chart.mjs").Spec} */
const specOf = (panel) => ({ kind: panel.signal ? "signal" : "metric", name: panel.signal || panel.metric, title: panel.title || titleOf(panel), split: panel.split || "", log: Boolean(panel.log) });
/** @param {OwnPanel} panel */
const titleOf = ({ signal, metric }) => (signal || metric).split("{")[0];
const panelId = (panel) => idOf(specOf(panel));
const place = () => by("own-charts");

async function load() {
  const mine = state.boot;
  try {
    const found = await readJson(apiPath("panels", { user: userName() }));
    if (mine !== state.boot) return;
    known = kept = found;
  } catch (error) {
    if (mine === state.boot && known.own.length) toast(`Your panels could not be read: ${reason(error)}`);
  }
  draw();
}

function draw() {
  if (!place() || !state.boot || state.boot.key !== "overview") return;
  const declared = known.declared.map((panel) => specOf(panel)), ids = declared.map(idOf);
  const own = known.own.filter((panel) => !ids.includes(panelId(panel))).map((panel) => ({ ...specOf(panel), own: true }));
  by("own-panels").hidden = !declared.length && !own.length;
  showCharts(place(), [...declared, ...own]);
}

// Shows the list at once, so that the next change begins with it; refused, what the server has comes back.
async function save(own, said) {
  const mine = ++turn, put = { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ panels: own }) };
  known = { ...known, own };
  draw();
  saves = saves.then(() => readJson(apiPath("panels", { user: userName() }), put)).then((answer) => (kept = answer, toast(said)), (error) => toast(`Not saved: ${reason(error)}`));
  await saves;
  if (mine !== turn) return;
  known = kept;
  draw();
}

export function addPanel(panel) {
  if (!userName()) return ask(() => addPanel(panel));
  return load().then(() => {
    const there = [...known.declared, ...known.own].some((one) => panelId(one) === panelId(panel));
    return there ? toast("Overview has this chart already") : save([...known.own, panel], "Added to Overview");
  });
}

// Whose panels: asked once in a browser.
function ask(then) {
  const form = make("form", "", "times"), label = make("label", "Your name"), field = make("input"), go = make("button", "Add", "more");
  Object.assign(field, { type: "text", required: true, maxLength: 100, autocomplete: "username" });
  label.append(field);
  form.append(label, make("p", "Your panels are kept on the server under this name.", "note"), go);
  const sheet = dialog("Add to Overview", form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    keepUserName(field.value.trim());
    sheet.close();
    then();
  });
  field.focus();
}

export const removePanel = (id) => save(known.own.filter((panel) => panelId(panel) !== id), "Removed from Overview");

/** The list with one of its entries moved to a place. */
export function moved(ids, id, to) {
  const rest = ids.filter((one) => one !== id), at = Math.max(0, Math.min(rest.length, to));
  return [...rest.slice(0, at), id, ...rest.slice(at)];
}

function move(id, to, focus) {
  const ids = known.own.map(panelId), next = moved(ids, id, to), at = next.indexOf(id);
  if (at === ids.indexOf(id)) return;
  const again = () => focus && place()?.querySelector(`[data-of="${CSS.escape(id)}"] .handle`)?.focus();
  const saved = save(next.map((one) => known.own[ids.indexOf(one)]), `Moved to place ${at + 1} of ${next.length}`);
  again();
  saved.then(again);
}

// Six dots: dragged by the pointer, moved by the arrow keys.
export function handle(holder, el) {
  const button = make("button", "", "handle"), dots = svg("svg", { width: 10, height: 16, "aria-hidden": "true" }), id = holder.dataset.of;
  for (const [x, y] of [[2, 3], [8, 3], [2, 8], [8, 8], [2, 13], [8, 13]]) dots.append(svg("circle", { cx: x, cy: y, r: 1.5 }));
  Object.assign(button, { type: "button", title: "Drag, or press the arrow keys" });
  button.setAttribute("aria-label", `Move ${el.querySelector("h2").textContent}`);
  button.append(dots);
  button.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    move(id, known.own.map(panelId).indexOf(id) + way, true);
  });
  button.draggable = true;
  button.addEventListener("dragstart", (event) => ((dragged = id), event.dataTransfer.setDragImage(el, 20, 20)));
  button.addEventListener("dragend", () => (dragged = ""));
  el.addEventListener("dragover", (event) => dragged && event.preventDefault());
  el.addEventListener("drop", (event) => dragged && (event.preventDefault(), move(dragged, known.own.map(panelId).indexOf(id))));
  return button;
}

drawers.push(() => {
  if (!place() || !state.boot || state.boot.key !== "overview" || state.boot.error || shown === state.boot) return;
  shown = state.boot;
  // After the first charts: what a user added is at the end of the page.
  setTimeout(load, 200);
});
