// Sources: the health of targets as rows, the unmapped keys of one of them on demand, and what a run's signals lack.
import { list, touched } from "../core/cells.mjs";
import { aged, all, by, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { poke } from "../core/live.mjs";
import { go, path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { finder, want, wanted } from "./runs.mjs";

const here = () => state.boot && state.boot.key === "sources";
const WORDS = { up: "Up", down: "Down", gone: "Gone", waiting: "Waiting", unread: "Not read" };
const STATES = { up: "ok", down: "critical", gone: "unknown", waiting: "unknown", unread: "unknown" };
const GROUPS = ["lack", "silent", "has", "none"];

function keysButton(run, target, count, td) {
  if (!count) return td.append(make("span", "none", "note"));
  const button = make("button", `${count.toLocaleString("en")} key${count === 1 ? "" : "s"}`, "plain");
  button.type = "button";
  button.dataset.of = run;
  button.dataset.keys = target;
  td.append(button);
}

function row({ run, target, actor, kind, state, error, dropped, keys: unmapped, gone_since: gone }) {
  const tr = make("tr"), th = make("th"), word = make("span", WORDS[state], "pill"), link = make("a", run);
  th.scope = "row";
  th.append(make("span", target, "name"));
  const about = make("span", "", "note");
  about.append(make("span", actor, "actor-" + actor), " · " + kind);
  th.append(about);
  word.dataset.state = state === "up" && (error || dropped) ? "watch" : STATES[state];
  link.href = path("overview") + "?" + new URLSearchParams({ run });
  link.dataset.in = "";
  const said = cellOf("State", word);
  if (gone) {
    const since = make("span", "", "note");
    since.append("since ", aged(gone));
    said.append(" ", since);
  }
  if (error) said.append(" ", make("span", error, "error"));
  if (dropped) said.append(" ", make("span", `${dropped.toLocaleString("en")} dropped at a limit`, "error"));
  const keys = cellOf("Unmapped keys");
  keysButton(run, target, unmapped, keys);
  tr.append(th, cellOf("Run", link), said, cellOf("Last read", make("span", "", "seen")), cellOf("Took", make("span", "", "took num")), cellOf("Samples", make("span", "", "samples num")), keys);
  return tr;
}

function numbers() {
  const rows = all("[data-rows=targets] tr:not(.keys-of)");
  (state.view["targets.n"] || []).forEach(({ seen_at: seen, scrape_seconds: took, samples }, i) => {
    if (!rows[i]) return;
    const at = rows[i].querySelector(".seen");
    if (seen) at.dataset.at = seen;
    else delete at.dataset.at, (at.textContent = "never");
    rows[i].querySelector(".took").textContent = seen ? format.text(took, "seconds") : "–";
    rows[i].querySelector(".samples").textContent = seen ? samples.toLocaleString("en") : "–";
  });
}

function keysRow() {
  for (const old of all(".keys-of")) old.remove();
  for (const button of all("[data-keys]")) {
    const { run, target, keys, more } = state.view["targets.keys"] || {}, mine = button.dataset.of === run && button.dataset.keys === target;
    button.setAttribute("aria-expanded", String(mine));
    if (!mine) continue;
    const tr = make("tr", "", "keys-of"), td = make("td"), list = make("ul");
    td.colSpan = 7;
    list.append(...keys.map(({ key, count }) => {
      const li = make("li", key);
      li.append(make("span", " × " + count.toLocaleString("en"), "note"));
      return li;
    }));
    td.append(make("p", "These keys are not mapped to any metric. A renamed key would appear here.", "note"), list, make("p", more ? `and ${more.toLocaleString("en")} more` : "", "note"));
    tr.append(td);
    button.closest("tr").after(tr);
  }
}

function lacking({ signal, title, actor, text, can }) {
  const li = make("li"), link = make("a", title);
  link.href = path("help") + "#" + signal;
  link.dataset.in = "";
  li.append(link, make("span", actor, "kind actor-" + actor), make("span", text, "note"));
  if (can) li.lastChild.append(make("b", " " + can + "."));
  return li;
}

document.addEventListener("click", (event) => {
  if (event.target.closest("#tg-only")) {
    want({ unhealthy: wanted("unhealthy") === "1" ? null : "1" });
    only();
    poke();
  }
  if (event.target.closest("#tg-all")) go(location.pathname + query({ all: state.boot.all ? null : "1" }));
  const keys = event.target.closest("[data-keys]");
  if (!keys) return;
  const open = keys.getAttribute("aria-expanded") === "true";
  want(open ? { of: null, keys: null } : { of: keys.dataset.of, keys: keys.dataset.keys });
  poke();
});

const only = () => by("tg-only").setAttribute("aria-pressed", String(wanted("unhealthy") === "1"));

window.addEventListener("popstate", () => {
  if (!here() || !by("tg-only") || location.pathname !== path("sources") || !("targets.head" in state.view)) return;
  by("tg-find").querySelector("input").value = wanted("find");
  only();
  poke();
});

drawers.push((cells) => {
  if ("sources.tab" in cells)
    for (const link of all("[data-tab]")) if (link.dataset.tab === cells["sources.tab"]) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  if (!by("tg-only") || !("targets.head" in state.view)) return;
  finder("tg-find", "Filter by target, run, kind, error", poke, 200);
  only();
  by("tg-all").setAttribute("aria-pressed", String(Boolean(state.boot.all)));
  const rows = touched(cells, "targets.");
  if (rows) {
    const body = document.querySelector("[data-rows=targets]"), focus = document.activeElement, of = focus && focus.dataset && focus.dataset.keys, found = list("targets.");
    body.replaceChildren(...found.map(row));
    body.closest("table").hidden = !found.length;
    if (of && !document.contains(focus)) (all("[data-keys]").find((el) => el.dataset.keys === of) || by("tg-only")).focus();
  }
  if (rows || "targets.keys" in cells) keysRow();
  if (rows || "targets.n" in cells) numbers();
  for (const group of GROUPS) {
    if (!(touched(cells, `coverage.${group}.`) || `coverage.${group}` in cells)) continue;
    document.querySelector(`[data-rows=coverage-${group}]`).replaceChildren(...list(`coverage.${group}.`).map(lacking));
  }
});
