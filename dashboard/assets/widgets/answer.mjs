// The answer card of the Overview: what to do next, where the gap comes from, and why; what it is about comes first below.
import { all, make } from "../core/dom.mjs";
import { text } from "../core/format.mjs";
import { navigated } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";

// What the server sent (`dashboard/pages/overview/banner.py`, `Answer`).
const answer = () => state.view.answer || {};
const COSTS = { setting: "a setting", restart: "needs a restart", money: "costs money" };

// `1.1× to 1.7× samples/s`: the gain of a change as a range.
export const gain = ([low, , high]) => `${low.toPrecision(2)}× to ${high.toPrecision(2)}× samples/s`;

// `staleness 2.5 → 4.8`, of each signal that the change moves.
export const effect = ({ signal, from, to }) => `${signal.split("{")[0].replace(/_versions$/, "").replaceAll("_", " ")} ${text(from, "")} → ${text(to, "")}`;

function change(one) {
  const li = make("li"), terms = make("p", "", "note");
  const words = [COSTS[one.cost], ...one.side_effects.map(effect), one.why];
  terms.textContent = words.filter(Boolean).join(" · ");
  li.append(make("b", one.text.replace(/\.$/, "")));
  const effects = make("p");
  if (one.gain) effects.append(make("span", gain(one.gain), one.gain[0] < 1 ? "gain unsure" : "gain"));
  if (one.simulate) {
    const link = make("a", "Simulate", "simulate");
    link.href = "what-if";
    Object.assign(link.dataset, { goto: "what-if", changes: one.simulate });
    effects.append(" ", link);
  }
  li.append(effects, terms);
  return li;
}

function advice(where) {
  const { advice: changes = [], beyond = "" } = answer(), steps = make("ol", "", "steps");
  where.hidden = !changes.length && !beyond;
  // Where nothing changed, the focus stays on its link.
  const key = JSON.stringify([changes, beyond]);
  if (where.dataset.key === key) return;
  where.dataset.key = key;
  steps.append(...changes.map(change));
  where.replaceChildren(make("h2", changes.length ? "Do this next" : "Next"), steps, ...(beyond ? [make("p", beyond, "note beyond")] : []));
  if (state.boot) navigated();
}

function gap(where) {
  const { gap: parts = [] } = answer(), bar = make("ul", "", "gap"), legend = make("ul", "", "gap-legend"), total = parts.reduce((sum, part) => sum + part.share, 0);
  where.hidden = parts.length < 2;
  bar.append(...parts.map((part) => {
    const li = make("li"), share = text(part.share, "ratio");
    li.dataset.state = part.state;
    li.style.width = (100 * part.share) / total + "%";
    li.title = `${part.label} ${share}: ${part.text}`;
    li.append(make("span", `${part.label} ${share}`));
    return li;
  }));
  // Shown instead of the labels in the bar where the screen is too narrow for them.
  legend.append(...parts.map((part) => {
    const li = make("li");
    li.dataset.state = part.state;
    li.append(make("i", "", "swatch verdict"), make("span", part.label), " ", make("b", text(part.share, "ratio")));
    li.firstElementChild.dataset.state = part.state;
    return li;
  }));
  where.replaceChildren(make("h2", "Where the gap comes from"), bar, legend);
}

function why(where) {
  const found = answer().why;
  where.hidden = !found;
  if (!found) return;
  const list = (name, title, rows) => {
    const ul = make("ul", "", name);
    ul.append(...rows.map((row) => make("li", row)));
    return rows.length ? [...(title ? [make("h3", title)] : []), ul] : [];
  };
  where.replaceChildren(make("summary", "Why?"), ...list("evidence", "", found.evidence), ...list("doubt", "In doubt", found.doubts),
    ...list("missing", "For more certainty, log", found.missing), ...list("missing", "For more advice", found.lacks));
}

function contradictions(where) {
  where.className = "contradictions";
  where.replaceChildren(...(answer().contradictions || []).map((row) => make("li", row)));
}

const PARTS = { advice, gap, why, contradictions };

// Cards and charts that show what limits the run come first.
function order({ cards, panels }) {
  for (const [kind, keys] of [["card", cards], ["panel", panels]])
    for (const el of all(`#page-overview [id^="${kind}-"]`)) {
      const at = keys.indexOf(el.id.slice(kind.length + 1));
      el.style.order = at < 0 ? "" : String(at - keys.length);
    }
}

drawers.push((cells) => {
  if (cells.first && document.querySelector("[data-answer]")) order(cells.first);
  if (cells.answer) for (const el of all("[data-answer]")) PARTS[el.dataset.answer](el);
});
