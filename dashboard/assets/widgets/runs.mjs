// Runs: the list of all of them, sorted and filtered here; the choice of those to compare, which is in the address; and the
// button that deletes a run, with a dialog that asks for confirmation.
import { list, touched } from "../core/cells.mjs";
import { all, by, cellOf, make, say } from "../core/dom.mjs";
import { poke } from "../core/live.mjs";
import { path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { dialog } from "./chart_menu.mjs";
import { compare } from "./compare.mjs";

const COLLECTED = new Set(["live", "catching_up", "stale"]), LOST = "The server cannot be reached.";

async function remove(name) {
  const query = new URLSearchParams({ confirm: name });
  const answer = await fetch(`${by("app").dataset.base}api/v1/runs/${encodeURIComponent(name)}?${query}`, { method: "DELETE" });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.detail || `The server answered ${answer.status}.`);
}

function confirm(name) {
  const button = make("button", `Delete ${name}`, "strong"), wrong = make("p", "", "error");
  wrong.setAttribute("role", "alert");
  const text = make("p", `This deletes the run ${name} with all its data permanently. There is no undo; a backup keeps a copy.`);
  const sheet = dialog("Delete a run", text, wrong, button);
  button.type = "button";
  button.addEventListener("click", async () => {
    button.disabled = true;
    wrong.textContent = "";
    try {
      await remove(name);
      sheet.close();
      unchoose(name);
      say("rn-said", `Run ${name} is deleted.`);
      poke();
    } catch (error) {
      wrong.textContent = "Not deleted: " + (error instanceof TypeError ? LOST : error.message);
      button.disabled = false;
      button.focus();
    }
  });
}

// The button of a row. A run that is collected cannot be deleted; the title states why.
export function deleteButton({ name, state }) {
  const button = make("button", "Delete", "plain delete");
  button.type = "button";
  button.setAttribute("aria-label", `Delete ${name}`);
  button.disabled = COLLECTED.has(state.name);
  if (button.disabled) button.title = "The run is being collected. Remove it from the configuration or stop its pushes first.";
  button.addEventListener("click", () => confirm(name));
  return button;
}

const MOST = 8, DRAWN = 300, LETTERS = "ABCDEFGH";
const here = () => state.boot && state.boot.key === "runs";
const known = new Map();
let order = "";

export const wanted = (name) => new URLSearchParams(location.search).get(name) || "";
// Commas are readable and need no escape in a query.
export function want(changes) {
  history.replaceState(history.state, "", location.pathname + query(changes).replace(/%2C/g, ",") + location.hash);
}

// A comma within a name is escaped, as is the escape.
export const chosen = () => (wanted("compare").match(/(?:[^\\,]|\\.)+/g) || []).map((name) => name.replace(/\\(.)/g, "$1")).slice(0, MOST);
export const letter = (i) => LETTERS[i];
export const runRow = (name) => (known.get(name) || {}).cell;

function choose(names) {
  want({ compare: names.length ? names.map((name) => name.replace(/[\\,]/g, "\\$&")).join(",") : null });
  marked();
  compare();
}
export const unchoose = (name) => choose(chosen().filter((one) => one !== name));

// ---- one row

function pill(words, state) {
  const el = make("span", words, "pill");
  el.dataset.state = state;
  return el;
}

function box(name) {
  const td = make("td", "", "pick"), label = make("label"), input = make("input");
  input.type = "checkbox";
  input.addEventListener("change", () => choose(input.checked ? [...chosen(), name] : chosen().filter((one) => one !== name)));
  label.append(input, make("span", "Compare " + name, "sr"));
  td.append(label);
  return td;
}

function link(page, name, words) {
  const el = make("a", words);
  el.href = path(page) + "?" + new URLSearchParams({ run: name });
  el.dataset.in = "";
  return el;
}

function heading({ name, state: { word, tone, says }, about }) {
  const th = make("th"), line = make("span", "", "line");
  th.scope = "row";
  const go = link("overview", name, name);
  go.title = name;
  line.append(go, pill(word, tone));
  th.append(line, make("span", [about, says].filter(Boolean).join(" · "), "note"));
  return th;
}

function verdict({ verdict, colour, cause, sure, since, says }) {
  const chip = make("span", verdict, "chip"), note = make("span", "", "note"), words = [cause, sure].filter(Boolean).join(" · ");
  chip.dataset.state = colour;
  note.append(words);
  if (since) {
    const lasts = make("span");
    lasts.dataset.since = since;
    note.append(words ? " · for " : "for ", lasts);
  }
  const td = cellOf("Limiter", chip, note);
  td.title = says;
  return td;
}

function number(label, { text, state, why }) {
  const el = make("span", text, "num");
  el.dataset.state = state;
  const td = cellOf(label, el);
  td.title = why;
  return td;
}

function alerts({ name, fire, grave, dark }) {
  if (!fire) return cellOf("Alerts", make("span", dark ? "not evaluated" : "none", "note"));
  const go = link("alerts", name, "");
  go.append(pill(`${fire} firing`, grave));
  return cellOf("Alerts", go);
}

function age(cell) {
  const { up, down } = cell, at = make("span", "", "at"), health = make("span", up, "note");
  health.dataset.down = down ? "1" : "";
  return cellOf("Last data", at, health, deleteButton(cell));
}

function fill(entry, cell) {
  const step = make("span", cell.step === null ? "–" : cell.step.toLocaleString("en"), "num");
  // All but the box: what is taken out of the page loses the focus.
  while (entry.tr.childElementCount > 1) entry.tr.lastChild.remove();
  entry.tr.append(heading(cell), verdict(cell), cellOf("Step", step), number("Wait", cell.wait),
    number("Staleness", cell.stale), number("$ / 1M tokens", cell.cost), alerts(cell), age(cell));
  entry.words = [cell.name, cell.state.word, cell.life, cell.about, cell.verdict, cell.cause].join("\n").toLowerCase();
}

// In place: a box that has the focus keeps it.
function take(cell, at) {
  let entry = known.get(cell.name);
  if (!entry) {
    entry = { tr: make("tr"), said: "" };
    entry.tr.append(box(cell.name));
    known.set(cell.name, entry);
  }
  const said = JSON.stringify(cell);
  if (entry.said !== said) fill(Object.assign(entry, { said, cell }), cell);
  entry.at = at;
  const age = entry.tr.querySelector(".at");
  if (at) age.dataset.at = at;
  else age.textContent = "no data yet";
}

// ---- order

const GRAVE = ["", "ok", "unknown", "watch", "critical"];
const ALIVE = { live: 0, catching_up: 0, stale: 0, not_collected: 1, finished: 2 };
const KEYS = { name: (e) => e.cell.name.toLowerCase(), verdict: (e) => e.cell.verdict, step: (e) => e.cell.step, fire: (e) => e.cell.fire,
  wait: (e) => e.cell.wait.value, stale: (e) => e.cell.stale.value, cost: (e) => e.cell.cost.value, at: (e) => e.at && Math.round(e.at / 30) };
const ordered = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const plain = (a, b) => ordered(ALIVE[a.cell.state.name], ALIVE[b.cell.state.name]) || ordered(GRAVE.indexOf(b.cell.grave), GRAVE.indexOf(a.cell.grave)) || ordered(b.cell.fire, a.cell.fire) || ordered(a.cell.name, b.cell.name);

function sorted(entries) {
  const asked = wanted("sort"), down = asked.startsWith("-"), key = KEYS[asked.replace("-", "")];
  if (!key) return entries.sort(plain);
  // What is not known has no place among what is: last, whichever way.
  return entries.sort((a, b) => {
    const [x, y] = [key(a) ?? null, key(b) ?? null];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || plain(a, b);
    return (down ? -1 : 1) * ordered(x, y) || plain(a, b);
  });
}

function arrange() {
  const body = document.querySelector("[data-rows=runs]"), words = wanted("find").toLowerCase().split(/\s+/).filter(Boolean);
  const found = sorted([...known.values()].filter((entry) => words.every((word) => entry.words.includes(word))));
  const shown = found.slice(0, DRAWN), next = shown.map((entry) => entry.cell.name).join("\n");
  if (next !== order || body.childElementCount !== shown.length) {
    const focus = document.activeElement;
    order = next;
    body.replaceChildren(...shown.map((entry) => entry.tr));
    if (body.contains(focus)) focus.focus({ preventScroll: true });
  }
  body.closest("table").hidden = !shown.length;
  const more = found.length > DRAWN ? `The first ${DRAWN} of ${found.length} are shown.` : "";
  by("rn-said").textContent = words.length && !found.length ? `No run matches “${wanted("find")}”.` : words.length ? `${found.length} of ${known.size} runs. ${more}` : more;
  for (const button of all(".fleet .sort")) {
    const asked = wanted("sort"), way = asked === button.dataset.sort ? "ascending" : asked === "-" + button.dataset.sort ? "descending" : "";
    if (way) button.parentNode.setAttribute("aria-sort", way);
    else button.parentNode.removeAttribute("aria-sort");
  }
}

// ---- what is chosen

function marked() {
  const picked = chosen();
  for (const [name, { tr }] of known) {
    const input = tr.querySelector("input"), at = picked.indexOf(name);
    input.checked = at >= 0;
    input.disabled = at < 0 && picked.length >= MOST;
    tr.dataset.chosen = at >= 0 ? "1" : "";
  }
  const clear = make("button", "Clear", "plain");
  clear.type = "button";
  clear.addEventListener("click", () => choose([]));
  const hint = picked.length === 1 ? [make("span", "Choose one more to compare.", "note")] : picked.length === MOST ? [make("span", `At most ${MOST} runs.`, "note")] : [];
  by("rn-chosen").replaceChildren(...(picked.length ? [...picked.map(chip), ...hint, clear] : []));
}

export function keyOf(i) {
  const el = make("b", LETTERS[i], "letter");
  el.dataset.line = i;
  return el;
}

function chip(name, i) {
  const el = make("span", "", "chosen-one"), off = make("button", "×");
  off.type = "button";
  off.setAttribute("aria-label", `Remove ${name} from the comparison`);
  off.addEventListener("click", () => unchoose(name));
  const words = make("span", name, "name");
  words.title = name;
  el.append(keyOf(i), words, off);
  return el;
}

// A field that filters by what is typed, and keeps it in the address.
export function finder(id, words, changed, wait) {
  const where = by(id);
  if (!where || where.firstElementChild) return;
  const label = make("label"), input = make("input");
  let timer = null;
  Object.assign(input, { type: "search", placeholder: words, maxLength: 200, autocomplete: "off", spellcheck: false, value: wanted("find") });
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => (want({ find: input.value.trim() || null }), changed()), wait || 0);
  });
  label.append(make("span", words, "sr"), input);
  where.append(label);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".fleet .sort");
  if (!button) return;
  const key = button.dataset.sort, now = wanted("sort"), first = key === "name" || key === "verdict" ? key : "-" + key;
  const other = first === key ? "-" + key : key;
  want({ sort: now === first ? other : now === other ? null : first });
  arrange();
});

window.addEventListener("popstate", () => {
  if (!here() || !by("rn-chosen") || location.pathname !== path("runs")) return;
  by("rn-find").querySelector("input").value = wanted("find");
  arrange();
  marked();
  compare();
});

drawers.push((cells) => {
  if (!by("rn-chosen") || !("runs.at" in state.view)) return;
  finder("rn-find", "Filter by name, framework, verdict", arrange);
  if ("runs.at" in cells || touched(cells, "runs.")) {
    const rows = list("runs."), names = new Set(rows.map((row) => row.name));
    rows.forEach((row, i) => take(row, state.view["runs.at"][i]));
    for (const name of known.keys()) if (!names.has(name)) known.delete(name);
    arrange();
    marked();
  }
  compare();
});
