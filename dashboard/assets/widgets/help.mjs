// Help: a fold per signal, found by a word or by its address (`help#trainer_wait_ratio`).
import { list, touched } from "../core/cells.mjs";
import { all, by, make } from "../core/dom.mjs";
import { path } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { finder, wanted } from "./runs.mjs";

const OPEN = 2;
const here = () => state.boot && state.boot.key === "help";

function pair(term, ...parts) {
  const dt = make("dt", term), dd = make("dd");
  dd.append(...parts);
  return [dt, dd];
}

function codes(names) {
  return names.flatMap((name, i) => (i ? [" ", make("code", name)] : [make("code", name)]));
}

function frameworks({ reported, not_applicable: none, hints, frameworks: all }) {
  if (!all) return [];
  const list = make("ul", "", "plain-list");
  for (const { framework, text } of reported) {
    const li = make("li");
    li.append(make("b", framework), make("span", " " + text, "note"));
    list.append(li);
  }
  const rows = [...pair(`Reported by (${reported.length} of ${all})`, reported.length ? list : "no framework")];
  if (none.length) rows.push(...pair("Not applicable to", none.join(", ")));
  if (!hints.length) return rows;
  const how = make("ul");
  how.append(...hints.map(({ framework, text }) => {
    const li = make("li");
    li.append(make("b", framework), ": " + text);
    return li;
  }));
  return [...rows, ...pair("By framework", how)];
}

function fold(row) {
  const { name, title, actor, unit, help, inputs } = row;
  const el = make("details"), head = make("summary"), body = make("dl"), link = make("a", "help#" + name, "anchor");
  el.id = name;
  el.dataset.words = [name, title, actor, unit, help, inputs.join(" "), row.reported.map(({ framework }) => framework).join(" ")].join("\n").toLowerCase();
  head.append(make("b", title), make("code", name), make("span", unit, "note"));
  link.href = "#" + name;
  body.append(...pair("Means", help), ...pair("Thresholds", row.bands || "no thresholds"), ...pair("Updated", row.cadence), ...pair("Inputs", ...codes(inputs)),
    ...pair("How to get it", row.enable), ...frameworks(row), ...pair("Link", link));
  el.append(head, body);
  return el;
}

function draw() {
  const groups = new Map();
  for (const row of list("help.")) groups.set(row.actor, [...(groups.get(row.actor) || []), row]);
  const found = [...groups].sort(([a], [b]) => a.localeCompare(b)).map(([actor, rows]) => {
    const el = make("section", "", "meaning-group");
    el.append(make("h3", actor), ...rows.map(fold));
    return el;
  });
  document.querySelector("[data-rows=help]").replaceChildren(...found);
}

function filter() {
  const words = wanted("find").toLowerCase().split(/\s+/).filter(Boolean), folds = all("[data-rows=help] details");
  const found = folds.filter((el) => !(el.hidden = !words.every((word) => el.dataset.words.includes(word))));
  for (const group of all(".meaning-group")) group.hidden = !group.querySelector("details:not([hidden])");
  // Few matches are opened; folds that the user opened stay open.
  if (words.length && found.length <= OPEN) for (const el of found) el.open = true;
  by("hp-said").textContent = words.length ? `${found.length || "No"} signal${found.length === 1 ? "" : "s"} of ${folds.length}.` : "";
}

function show() {
  const el = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!el || !el.closest(".helplist")) return;
  el.hidden = el.parentNode.hidden = false;
  el.open = true;
  for (const other of all(".helplist .hit")) other.classList.remove("hit");
  el.classList.add("hit");
  el.scrollIntoView({ block: "center" });
}

for (const event of ["popstate", "hashchange"]) window.addEventListener(event, () => here() && by("hp-find") && location.pathname === path("help") && show());

// (i) of a chart: the tip under its title opens and closes.
document.addEventListener("mousedown", (event) => event.target.closest(".info") && event.preventDefault());
document.addEventListener("click", (event) => {
  const info = event.target.closest(".info"), title = info && info.closest(".row").querySelector("h2");
  if (title) title[title === document.activeElement ? "blur" : "focus"]();
});

drawers.push((cells) => {
  if (!by("hp-find") || !("help.0" in state.view)) return;
  finder("hp-find", "Find a signal by name or meaning", filter);
  if (!touched(cells, "help.")) return;
  draw();
  filter();
  // After the page is shown: what is hidden cannot be scrolled to.
  requestAnimationFrame(show);
});
