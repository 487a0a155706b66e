// The targets on the Overview, from the cells of `dashboard/pages/sources/trust.py`.
import { list, touched } from "../core/cells.mjs";
import { aged, cellOf, make } from "../core/dom.mjs";
import { drawers } from "../core/state.mjs";
import { STATES, WORDS } from "./targets.mjs";

drawers.push((cells) => {
  const table = document.querySelector("[data-rows=trust]");
  if (!table || !touched(cells, "t.")) return;
  const found = list("t.");
  table.replaceChildren(...found.map(row));
});

function status(state, error) {
  const el = make("span", WORDS[state], "pill");
  el.dataset.state = state === "up" && error ? "watch" : STATES[state];
  return el;
}

function row({ target, actor, kind, state, seen_at: seen, error, samples, dropped, unmapped, keys }) {
  const tr = make("tr");
  const name = make("th", target);
  name.scope = "row";
  const bad = make("span", error, "error");
  tr.append(name, cellOf("Actor", make("span", actor, "actor-" + actor), make("span", kind, "kind")),
    cellOf("Status", status(state, error), bad), cellOf("Last read", aged(seen, "never")),
    cellOf("Samples in last read", make("span", samples.toLocaleString("en")), make("span", dropped ? `${dropped.toLocaleString("en")} dropped` : "", "error")), cellOf("Unmapped keys", Object.assign(make("span", unmapped ? String(keys) : "none"), { title: unmapped })));
  return tr;
}
