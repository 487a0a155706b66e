// Bars of parts: the step by phase, staleness by where it arises (`dashboard/widgets/base.py`, `Part`).
import { all, make } from "../core/dom.mjs";
import { text } from "../core/format.mjs";
import { drawers, state } from "../core/state.mjs";

/** @param {HTMLElement} bar @param {{ key: string, label: string, share: number }[]} parts */
function draw(bar, parts) {
  bar.dataset.state = parts.length ? "known" : "unknown";
  bar.replaceChildren(...parts.filter(({ share }) => share > 0).map(({ key, label, share }) => {
    const slice = make("span", "", "slice " + key);
    slice.style.width = 100 * share + "%";
    // Whether there is room for it depends on the width of the page: the style sheet drops what would be cut.
    slice.append(make("span", `${label} ${text(share, "ratio")}`));
    return slice;
  }));
}

drawers.push((cells) => {
  for (const bar of all("[data-split]")) {
    const [, cell, name] = bar.dataset.split.match(/(.*)\.(.*)/);
    if (cells[cell]) draw(bar, state.view[cell][name] || []);
  }
});
