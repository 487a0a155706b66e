// What stands around a chart: newest values, limits, sources, and the reason for having no chart
// (`dashboard/widgets/chart.py`).
import { all, by } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { drawers, state } from "../core/state.mjs";

/**
 * @typedef {{ label: string, value?: number, unit?: string, source?: string }} Line
 * @typedef {{ state: string, health: string, word?: string, why?: string, source?: string, limits?: Object<string, string>,
 *   drift?: string, drift_state?: string, lines: Line[] }} Chart
 */

/** What the server sent of a chart. @returns {Chart | undefined} */
export const chartOf = (panel) => state.view["chart." + panel];

/** The line of a slot: "queue.0". @returns {Line | undefined} */
export function lineOf(slot) {
  const [panel, i] = slot.split("."), chart = chartOf(panel);
  return chart && chart.lines[Number(i)];
}

// The newest values, where no others are shown for the time under the cursor.
export function newest() {
  for (const b of all("[data-slot]")) {
    const line = lineOf(b.dataset.slot);
    b.textContent = line && line.value !== undefined ? format.text(line.value, line.unit) : "";
  }
}

/** @param {HTMLElement} el @param {Chart} chart */
function draw(el, chart) {
  const put = (where, words) => where && (where.textContent = words || "");
  for (const b of all("[data-slot]", el)) {
    const line = lineOf(b.dataset.slot), item = b.parentElement;
    if (!line || item.matches(".more-lines")) continue;
    item.dataset.state = line.value === undefined ? "silent" : "known";
    put(item.querySelector("span"), line.label);
    // While the cursor is on a chart, the legends show the values under it.
    if (!state.hovering) b.textContent = line.value === undefined ? "" : format.text(line.value, line.unit);
  }
  for (const limit of all("[data-limit]", el)) put(limit, (chart.limits || {})[limit.dataset.limit]);
  const drift = el.querySelector(".drift"), pill = el.querySelector(".why .pill");
  if (drift) drift.dataset.state = chart.drift_state || "";
  pill.dataset.state = chart.health;
  put(drift, chart.drift);
  put(pill, chart.word);
  put(el.querySelector(".why p"), chart.why);
  put(el.querySelector(".src"), chart.source);
}

drawers.push((cells) => {
  for (const [key, chart] of Object.entries(cells)) {
    const el = key.startsWith("chart.") && chart && by("panel-" + key.slice(6));
    if (el) draw(el, chart);
  }
});
