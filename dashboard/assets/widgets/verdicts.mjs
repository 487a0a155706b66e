// The verdict over time (`dashboard/pages/verdict.py`): a ribbon in the lane of events.
import { make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { cross, leave } from "./cursor.mjs";
import { laneOf } from "./events.mjs";
import { across, toX } from "./step_axis.mjs";
import { repaint } from "./svg.mjs";

const LEAST = 60;
const rows = () => state.view["verdicts.rows"] || [];
const local = (seconds) => 1000 * seconds + state.tz;
const label = (word, cause) => word + (cause ? ` (${cause})` : "");

// The verdict at a time (local ms): [[text, colour]], [[]] without one.
export function verdictAt(ms) {
  const row = rows().find(([start, end]) => ms >= local(start) && ms < local(end ?? now()));
  return row ? [[label(row[3], row[4]), row[2]], ...(row[5] ? [[row[5]]] : [])] : [];
}

// A part is a link to its own time, at least a minute of it: it opens, can be shared, and is reached by the keyboard.
export function href(start, end) {
  const until = Math.min(end ?? now(), now()), more = Math.max(0, LEAST - (until - start)) / 2;
  return path(state.boot.key) + query({ start: (start - more).toFixed(0), end: (until + more).toFixed(0) });
}

function part() {
  const li = make("li"), link = make("a");
  link.dataset.in = "1";
  link.append(make("span"));
  link.addEventListener("focus", () => {
    const box = link.getBoundingClientRect();
    cross(li.ms, laneOf(), box.left, box.bottom);
  });
  link.addEventListener("blur", leave);
  li.append(link);
  return li;
}

function fill(li, [start, end, colour, word, cause, summary], from, to) {
  const link = li.firstChild, [low, high] = across(from, to), first = Math.max(local(start), from), last = Math.min(local(end ?? now()), to);
  li.hidden = last <= first;
  if (li.hidden) return;
  li.ms = first;
  li.style.left = (100 * (toX(first) - low)) / (high - low) + "%";
  li.style.width = (100 * (toX(last) - toX(first))) / (high - low) + "%";
  li.dataset.state = colour;
  const target = href(start, end), lasted = format.span((end ?? now()) - start), words = `${label(word, cause)} for ${lasted}: ${summary}`;
  if (link.getAttribute("href") !== target) link.setAttribute("href", target);
  if (link.getAttribute("aria-label") !== words) link.setAttribute("aria-label", words);
  if (link.firstChild.textContent !== label(word, cause)) link.firstChild.textContent = label(word, cause);
}

function paint() {
  const lane = laneOf(), where = lane && lane.querySelector(".ribbon"), found = rows();
  if (!where || state.boot.error || !state.view["verdicts.rows"]) return;
  while (where.children.length > found.length) where.lastChild.remove();
  while (where.children.length < found.length) where.append(part());
  found.forEach((row, i) => fill(where.children[i], row, ...range()));
}

drawers.push((cells) => {
  if (Object.keys(cells).some((key) => key.startsWith("verdicts."))) paint();
});
repaint(paint);
