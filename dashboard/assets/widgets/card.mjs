// Cards: a number with its state, its note and its small line (`dashboard/widgets/card.py`).
import { by } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { drawers, state } from "../core/state.mjs";

/**
 * @typedef {{ value?: number, unit?: string, state: string, word?: string, window?: string, note?: string, why?: string,
 *   since?: number }} Card
 */

/** @param {HTMLElement} el @param {Card} card */
function draw(el, card) {
  /** @returns {HTMLElement} */
  const part = (name) => el.querySelector("." + name);
  const [figure, unit] = format.parts(card.value, card.unit);
  el.dataset.state = part("pill").dataset.state = card.state;
  const texts = { pill: card.word, num: figure, unit, text: card.note, window: card.window };
  for (const [name, words] of Object.entries(texts)) part(name).textContent = words || "";
  part("note").title = card.why || "";
  part("alerting").dataset.state = card.since ? "on" : "off";
  const since = part("for");
  if (card.since) since.dataset.since = String(card.since);
  if (card.since) since.textContent = format.span((state.boot ? now() : card.since) - card.since);
  else delete since.dataset.since;
}

drawers.push((cells) => {
  for (const [key, card] of Object.entries(cells)) {
    const el = key.startsWith("card.") && card && by("card-" + key.slice(5));
    if (el) draw(el, card);
  }
});
