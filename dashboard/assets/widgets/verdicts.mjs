// The verdict over time (`dashboard/pages/verdict.py`): a ribbon below the same time as the charts, and its changes on them.
import { make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { near, over, repaint } from "./svg.mjs";

const LEAST = 60, APART = 6;
const rows = () => state.view["v.rows"] || [];
const local = (seconds) => 1000 * seconds + state.tz;
let chosen = -1;

// [[local ms, text], ...] of the changes; the start of the first part is not one.
export const turns = () => rows().slice(1).map(([start, , , word, cause]) => [local(start), label(word, cause)]);
const label = (word, cause) => word + (cause ? ` (${cause})` : "");

// What the verdict became at this time, within a few pixels.
export function verdictAt(ms, perPixel) {
  const best = near(turns(), ms, perPixel);
  return best ? "verdict: " + best[1] : "";
}

// A part is a link to its own time, at least a minute of it: it opens, can be shared, and is reached by the keyboard.
function href(start, end) {
  const until = end ?? now(), more = Math.max(0, LEAST - (until - start)) / 2;
  return path(state.boot.key) + query({ start: (start - more).toFixed(0), end: (until + more).toFixed(0) });
}

function part(i) {
  const li = make("li"), link = make("a");
  link.dataset.in = "1";
  link.append(make("span"));
  link.addEventListener("pointerenter", () => describe(i));
  link.addEventListener("focus", () => describe(i));
  link.addEventListener("pointerleave", () => describe(-1));
  link.addEventListener("blur", () => describe(-1));
  li.append(link);
  return li;
}

function fill(li, [start, end, colour, word, cause, summary], from, to) {
  const link = li.firstChild, first = Math.max(local(start), from), last = Math.min(local(end ?? now()), to);
  li.hidden = last <= first;
  if (li.hidden) return;
  li.style.left = (100 * (first - from)) / (to - from) + "%";
  li.style.width = (100 * (last - first)) / (to - from) + "%";
  li.dataset.state = colour;
  const target = href(start, end), lasted = format.span((end ?? now()) - start), words = `${label(word, cause)} for ${lasted}: ${summary}`;
  if (link.getAttribute("href") !== target) link.setAttribute("href", target);
  if (link.getAttribute("aria-label") !== words) link.setAttribute("aria-label", words);
  if (link.firstChild.textContent !== label(word, cause)) link.firstChild.textContent = label(word, cause);
}

// Shows the whole text and time of the part under the cursor or with the focus.
function describe(i) {
  chosen = i;
  const note = document.querySelector("[data-t='v.note']"), row = rows()[i];
  if (!note) return;
  if (!row) return void (note.textContent = state.view["v.note"] ?? "");
  const [start, end, , word, cause, summary] = row, wide = state.boot.end - state.boot.start > 86400;
  const to = end === null ? "now" : format.clock(local(end), wide).slice(0, wide ? 11 : 5);
  note.textContent = `${label(word, cause)} · ${format.clock(local(start), wide).slice(0, wide ? 11 : 5)} – ${to} · ${summary}`;
}

function paint() {
  const where = document.querySelector("[data-ribbon]");
  if (!state.boot || state.boot.error || !state.view["v.rows"]) return;
  const [from, to] = range(), found = rows();
  if (where) {
    while (where.children.length > found.length) where.lastChild.remove();
    while (where.children.length < found.length) where.append(part(where.children.length));
    found.forEach((row, i) => fill(where.children[i], row, from, to));
    if (chosen >= 0) describe(chosen);
  }
  over("turns", "turned", turnPath);
}

// Dashed, over the whole height: weight updates are thin and many, a change of the verdict is news.
// Changes closer than `APART` pixels are one line.
function turnPath(x, top, bottom, start, end) {
  let drawn = "", last = -Infinity;
  for (const [at] of turns()) {
    const place = Math.round(x(at)) + 0.5;
    if (at < start || at > end || place - last < APART) continue;
    drawn += `M${place} ${top}V${bottom}`;
    last = place;
  }
  return drawn;
}

drawers.push((cells) => {
  if (Object.keys(cells).some((key) => key.startsWith("v."))) paint();
});
repaint(paint);
