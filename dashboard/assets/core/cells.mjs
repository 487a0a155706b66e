// Fills the page's texts from its cells (`dashboard/shell/page.py`) and updates ages.
import { all, words } from "./dom.mjs";
import * as format from "./format.mjs";
import { now } from "./live.mjs";
import { navigated } from "./nav.mjs";
import { drawers, state } from "./state.mjs";

// Epoch seconds as the reader's clock has them, with the day when it is not today's; `end` 19: with seconds.
export function clockOf(at, end = 16) {
  const [then, today] = [at, state.boot ? now() : at].map((ts) => new Date(ts * 1000 + state.tz).toISOString());
  return (then.slice(0, 10) === today.slice(0, 10) ? "" : then.slice(5, 10) + " ") + then.slice(11, end);
}

// Only text nodes and style properties, so that names of runs and targets cannot become markup.
// A key may go on into a cell that is an object: "answer.text" is the field "text" of the cell "answer".
const put = { t: (el, cell) => words(el, cell ?? ""), s: (el, cell) => (el.dataset.state = cell ?? ""),
  a: (el, cell) => (el.dataset.at = cell ?? ""),
  h: (el, cell) => (el.title = cell ?? ""), c: (el, cell) => (el.textContent = cell ? clockOf(cell) : ""),
  n: (el, cell) => (el.textContent = cell ? (cell.prefix || "") + (cell.text || format.text(cell.value, cell.unit)) : ""),
  f: (el, cell) => (el.textContent = cell ? cell.text || format.parts(cell.value, cell.unit)[0] : ""),
  u: (el, cell) => (el.textContent = cell && !cell.text ? [format.parts(cell.value, cell.unit)[1], cell.label].filter(Boolean).join(" ") : ""),
  p: (el, cell) => (el.style.width = 100 * (cell || 0) + "%"),
  q: (el, cell) => ((el.hidden = !cell), (el.dataset.changes = cell || ""), state.boot && navigated()) };
let index = null;

function elements() {
  if (index) return index;
  const found = {};
  for (const kind of Object.keys(put))
    for (const el of all(`[data-${kind}]`)) {
      const path = el.dataset[kind].split(".");
      for (let n = path.length; n > 0; n--) (found[path.slice(0, n).join(".")] ||= []).push([kind, el, path.slice(n)]);
    }
  return (index = found);
}

// The field of a cell; undefined where the rest of the path belongs to another cell.
function field(key, cell, rest) {
  if (!rest.length) return cell;
  if ((cell !== null && typeof cell !== "object") || [key, ...rest].join(".") in state.view) return undefined;
  return rest.reduce((found, name) => found?.[name], cell) ?? null;
}

// Elements were added or removed: the next fill builds the index again.
export const reindex = () => (index = null);

export function fill(cells) {
  for (const [key, cell] of Object.entries(cells)) {
    if (cell === null) delete state.view[key];
    else state.view[key] = cell;
  }
  for (const draw of drawers) draw(cells);
  const where = elements();
  for (const [key, cell] of Object.entries(cells)) {
    for (const [kind, el, rest] of where[key] || []) {
      const found = field(key, cell, rest);
      if (found !== undefined) put[kind](el, found);
    }
  }
  ages();
}

// Rows `PREFIX0`, `PREFIX1` .. of the view.
export function list(prefix) {
  const found = [];
  for (let i = 0; state.view[prefix + i]; i++) found.push(state.view[prefix + i]);
  return found;
}
export const touched = (cells, prefix) => Object.keys(cells).some((key) => key.startsWith(prefix) && /^\d+$/.test(key.slice(prefix.length)));

// Ages count up here, also while the server is gone.
export function ages() {
  if (!state.boot) return;
  for (const el of all("[data-at]")) {
    const at = el.dataset.at;
    el.textContent = at ? format.age(now() - at) : "";
  }
  for (const el of all("[data-since]")) el.textContent = format.span(now() - el.dataset.since);
  for (const el of all("[data-till]")) el.textContent = format.span(el.dataset.till - now());
}
