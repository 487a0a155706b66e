// The Explore page: the catalogue of a run, found by words; what is chosen is in the address (`dashboard/pages/explore/layout.py`).
import { apiPath, parseName, readJson, reason, runApi, seriesName, seriesNames } from "../core/api.mjs";
import { ages } from "../core/cells.mjs";
import { by, make } from "../core/dom.mjs";
import { drawers, painters, state } from "../core/state.mjs";
import { idOf, showCharts } from "./own_chart.mjs";
import { addPanel } from "./own_panels.mjs";
import { finder, want, wanted } from "./runs.mjs";

// Charts at once; seconds until the catalogue is read again; rows of the list.
const MOST = 12, AGAIN = 60, ROWS = 400;
const known = { run: "", at: 0, rows: [], turn: 0 };
let shown = null;

const here = () => Boolean(by("ex-list") && state.boot && state.boot.key === "explore" && !state.boot.error);
/** @type {("signal" | "metric")[]} */
const kinds = ["signal", "metric"];
const chosen = () => kinds.flatMap((kind) => seriesNames(wanted(kind)).map((name) => ({ kind, name }))).slice(0, MOST);
const specs = () => chosen().map((one) => ({ ...one, title: titleOf(one), missing: missingOf(one), split: wanted("split"), log: wanted("log") === "1" }));
const entry = ({ kind, name }) => known.rows.find((row) => row.kind === kind && row.name === parseName(name)[0]);
// What to log or to add for a signal that this run does not report.
const missingOf = (one) => (entry(one) && !entry(one).series.length ? entry(one).missing : "");
const titleOf = (one) => (entry(one) || {}).title || parseName(one.name)[0];

/** Rows of the catalogue, from both answers: what is reported first. While any signal has a value, one
 * without counts as reported only if one of its inputs is: its source may be silent. */
export function catalogue(metrics, signals) {
  const inputs = new Set(metrics.filter((one) => (one.series || []).length).map((one) => one.name));
  const live = signals.some((one) => Object.values(one.series || {}).some(({ value }) => value !== null));
  const found = signals.filter((one) => !one.name.endsWith("_total")).map((one) => {
    const all = Object.entries(one.series || {}).filter(([, { ts }]) => ts), known = all.filter(([, { value }]) => value !== null);
    const had = !live || known.length || (one.inputs || []).some((name) => inputs.has(name)) ? all : [];
    return { kind: "signal", name: one.name, title: one.title, unit: one.unit, actor: one.actor, help: one.help, unlisted: 0, missing: one.enable || "",
      newest: known.length ? Math.max(...known.map(([, { ts }]) => ts)) : null, series: had.map(([name]) => parseName(name)[1]) };
  });
  const reported = metrics.map((one) => ({
    kind: "metric", name: one.name, title: one.name, unit: one.unit, actor: one.actor || "sources", help: one.help, missing: "", newest: one.newest ?? null,
    unlisted: one.unlisted || 0, series: (one.series || []).map((row) => parseName(row.name)[1]),
  }));
  return [...found, ...reported].sort((a, b) => Number(!a.series.length) - Number(!b.series.length));
}

const words = (row) => [row.name, row.title, row.unit, row.actor, row.help, row.kind].join(" ").toLowerCase();
/** Rows that have all words; without words only those that the run has. */
export function matching(rows, text) {
  const asked = text.toLowerCase().split(/\s+/).filter(Boolean);
  return asked.length ? rows.filter((row) => asked.every((word) => words(row).includes(word))) : rows.filter((row) => row.series.length);
}

async function load() {
  const run = state.boot.run, mine = ++known.turn;
  Object.assign(known, { at: performance.now() }, known.run === run ? {} : { run, rows: [] });
  try {
    const [metrics, signals] = await Promise.all([readJson(apiPath("metrics", { run })), readJson(runApi(run, "signals"))]);
    if (mine !== known.turn || !here()) return;
    known.rows = catalogue(metrics, signals);
    list();
    changed();
  } catch (error) {
    if (mine === known.turn && here()) by("ex-said").textContent = `The catalogue could not be read: ${reason(error)}.`;
  }
}

// ---- the list

function list() {
  const found = matching(known.rows, wanted("find")), rows = found.slice(0, ROWS), groups = new Map();
  for (const row of rows) groups.set(row.actor, [...(groups.get(row.actor) || []), row]);
  const reported = known.rows.filter((row) => row.series.length).length;
  by("ex-said").textContent = wanted("find")
    ? `${found.length || "Nothing"} of ${known.rows.length} found${found.length > ROWS ? `, the first ${ROWS} shown` : ""}.`
    : `${reported} of ${known.rows.length} reported by this run. Search to see the others.`;
  const focus = document.activeElement?.dataset?.pick;
  by("ex-list").replaceChildren(...[...groups].flatMap(([actor, some]) => [make("h3", actor || "run"), ...some.map(item)]));
  if (focus) by("ex-list").querySelector(`[data-pick="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  marks();
  ages();
}

function item(row) {
  const button = make("button", "", "catalogue-row"), age = make("span", row.series.length ? "no value now" : "not reported", "age"), count = row.series.length + row.unlisted;
  Object.assign(button, { type: "button", title: row.help });
  button.dataset.pick = idOf(row);
  button.dataset.state = row.series.length ? "known" : "silent";
  if (row.newest) age.dataset.at = row.newest;
  button.append(make("b", row.title), make("span", [row.kind === "signal" && `signal ${row.name}`, row.unit === "ratio" ? "%" : row.unit, count > 1 && `${count} series`].filter(Boolean).join(" · "), "what"), age);
  button.addEventListener("click", () => toggle(row));
  return button;
}

function marks() {
  const on = new Set(chosen().map(({ kind, name }) => `${kind}:${parseName(name)[0]}`)), full = chosen().length >= MOST;
  for (const button of by("ex-list").querySelectorAll("[data-pick]")) {
    const pressed = on.has(button.dataset.pick);
    button.setAttribute("aria-pressed", String(pressed));
    button.disabled = full && !pressed;
  }
}

// ---- what is chosen

const put = (all) => choose(Object.fromEntries(kinds.map((kind) => [kind, all.filter((one) => one.kind === kind).map((one) => one.name).join(",") || null])));
function choose(changes) {
  want(changes);
  marks();
  changed();
}

function toggle(row) {
  const all = chosen(), rest = all.filter(({ kind, name }) => kind !== row.kind || parseName(name)[0] !== row.name);
  put(rest.length < all.length ? rest : [...all, { kind: row.kind, name: row.name }]);
}

function select(label, options, value, changed) {
  const where = make("label"), el = make("select");
  el.append(...options.map(([key, text]) => new Option(text, key)));
  el.value = value;
  el.addEventListener("change", () => changed(el.value));
  where.append(make("span", label), el);
  return where;
}

// The labels of a name that have more than one value: a menu each.
function menus(one) {
  const [name, fixed] = parseName(one.name), series = (entry(one) || { series: [] }).series, keys = [...new Set(series.flatMap(Object.keys))].sort();
  const rest = (labels) => put(chosen().map((other) => (idOf(other) === idOf(one) ? { ...one, name: seriesName(name, labels) } : other)));
  return keys.flatMap((key) => {
    const values = [...new Set(series.map((labels) => labels[key]).filter(Boolean))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (values.length < 2 && !fixed[key]) return [];
    return [select(key, [["", "all"], ...values.map((value) => [value, value])], fixed[key] || "", (value) => {
      const labels = { ...fixed };
      delete labels[key];
      rest(value ? { ...labels, [key]: value } : labels);
    })];
  });
}

function chip(one) {
  const el = make("li", "", "chosen-one"), off = make("button", "×"), title = titleOf(one);
  off.type = "button";
  off.setAttribute("aria-label", `Remove ${title}`);
  off.addEventListener("click", () => (put(chosen().filter((other) => idOf(other) !== idOf(one))), by("ex-find").querySelector("input").focus()));
  const add = make("button", "Add to Overview", "plain");
  add.type = "button";
  add.addEventListener("click", () => addPanel({ [one.kind]: one.name, split: wanted("split"), log: wanted("log") === "1" }));
  el.append(make("span", title, "name"), ...menus(one), add, off);
  return el;
}

function head() {
  const all = chosen(), labels = [...new Set(all.flatMap((one) => (entry(one) || { series: [] }).series.flatMap(Object.keys)))].sort();
  const log = make("button", "Log scale", "switch"), chips = make("ul", "", "chosen"), is = wanted("log") === "1", asked = wanted("split");
  log.type = "button";
  log.setAttribute("aria-pressed", String(is));
  log.addEventListener("click", () => (choose({ log: is ? null : "1" }), by("ex-chosen").querySelector(".switch").focus()));
  chips.append(...all.map(chip));
  const options = [["", "one chart each"], ...[...new Set([...labels, asked])].filter(Boolean).map((key) => [key, `by ${key}`])];
  by("ex-chosen").replaceChildren(...(all.length ? [chips, select("Split", options, asked, (value) => choose({ split: value || null })), log] : [make("p", "Choose a metric or a signal in the list: each is one chart here. The address holds the choice.", "note")]));
}

function changed() {
  if (!here()) return;
  head();
  showCharts(by("ex-charts"), specs());
}

drawers.push(() => {
  if (!here() || shown === state.boot) return;
  shown = state.boot;
  finder("ex-find", "Find by name, unit, actor", list, 100);
  if (known.run !== state.boot.run || !known.rows.length) load();
  else list();
  changed();
});
painters.push(() => here() && !document.hidden && performance.now() - known.at > 1000 * AGAIN && load());
window.addEventListener("popstate", () => here() && location.pathname.endsWith("/explore") && known.rows.length && (by("ex-find").querySelector("input").value = wanted("find"), list(), changed()));
