// The targets on the Overview, from the cells of `dashboard/pages/targets/trust.py`.
import { list, touched } from "../core/cells.mjs";
import { aged, cellOf, make } from "../core/dom.mjs";
import { drawers } from "../core/state.mjs";

drawers.push((cells) => {
  const table = document.querySelector("[data-rows=trust]");
  if (!table || !touched(cells, "t.")) return;
  const found = list("t.");
  table.replaceChildren(...found.map(row));
  document.querySelector("[data-rows=brief]").replaceChildren(...short(found).map(brief));
});

// Rows come worst first: targets that are down, then one healthy target per actor.
function short(found) {
  const actors = new Set();
  const picked = found.filter(([, actor, , up, , error]) => up < 2 && (!up || error || (!actors.has(actor) && actors.add(actor))));
  return picked.slice(0, 3);
}

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

function brief([target, , kind, up, seen, error]) {
  const li = make("li");
  li.append(status(up, error), make("b", target), make("span", kind, "kind"));
  li.append(error ? make("span", error, "error") : aged(seen, "no data yet"));
  return li;
}
