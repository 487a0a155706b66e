// The targets on the Overview, from the cells of `dashboard/pages/sources/trust.py`.
import { list, touched } from "../core/cells.mjs";
import { aged, cellOf, make } from "../core/dom.mjs";
import { drawers } from "../core/state.mjs";

drawers.push((cells) => {
  const table = document.querySelector("[data-rows=trust]");
  if (!table || !touched(cells, "t.")) return;
  const found = list("t.");
  table.replaceChildren(...found.map(row));
});

function status(up, error) {
  const el = make("span", ["Down", "Up", "Gone", "Not read"][up], "pill");
  el.dataset.state = ["critical", error ? "watch" : "ok", "unknown", "unknown"][up];
  return el;
}

function row([target, actor, kind, up, seen, error, samples, dropped, unmapped, count]) {
  const tr = make("tr");
  const name = make("th", target);
  name.scope = "row";
  const bad = make("span", error, "error");
  tr.append(name, cellOf("Actor", make("span", actor, "actor-" + actor), make("span", kind, "kind")),
    cellOf("Status", status(up, error), bad), cellOf("Last read", aged(seen, "never")),
    cellOf("Samples in last read", make("span", samples), make("span", dropped, "error")), cellOf("Unmapped keys", Object.assign(make("span", unmapped ? String(count) : "none"), { title: unmapped })));
  return tr;
}
