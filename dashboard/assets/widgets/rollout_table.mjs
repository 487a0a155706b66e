// The tables of rollouts and groups: filters, order and pages live in the address, rows come as cells.
import { ages } from "../core/cells.mjs";
import { all, by, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { poke } from "../core/live.mjs";
import { query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { range } from "./chart.mjs";
import { stateWord } from "./rollouts.mjs";
import { openRollout, showOpen } from "./timeline.mjs";

const WAIT = 250, ANSWER = 5000;
let askedAt = -ANSWER;
const here = () => state.boot && state.boot.key === "rollouts";
const param = (name) => new URLSearchParams(location.search).get(name) || "";
const count = (value) => (value === null ? "–" : value.toLocaleString("en"));

// Changes the query in the address and polls at once. `push`: adds a history entry.
export function ask(changes, push) {
  const href = location.pathname + query(changes) + location.hash;
  if (push) history.pushState({}, "", href);
  else history.replaceState(history.state, "", href);
  forget(changes);
  asked();
}

function asked() {
  askedAt = performance.now();
  show();
  poke();
  showOpen();
}

// Added pages belong to the previous query.
const OPENS = ["rollout", "life"];
function forget(changes) {
  const names = Object.keys(changes);
  if (names.some((name) => !OPENS.includes(name) && name !== "outcome")) tables.rollouts.begin();
  if (names.includes("outcome") || names.includes("environment")) tables.groups.begin();
}

window.addEventListener("popstate", () => {
  if (!here()) return;
  tables.rollouts.begin();
  tables.groups.begin();
  asked();
});

// ---- cells of a row

// Foreign names: two lines, and the whole in the tooltip.
function word(text, name) {
  const el = make("span", text, name);
  if (String(text).length > 40) (el.title = text), el.classList.add("long");
  return el;
}

function aged(at) {
  const el = make("span");
  (el.dataset.at = at), (el.title = new Date(at * 1000).toLocaleString());
  return el;
}

const note = (text) => word(text, "note");
const GOOD = { trained: "ok", mixed: "ok", infra_error: "critical", env_error: "critical", stale: "watch", zero_advantage: "watch", all_solved: "watch", none_solved: "watch", equal_unknown: "watch", too_few_valid: "critical" };
export function statePill(state) {
  const el = make("span", stateWord(state), "pill");
  el.dataset.state = GOOD[state] || "unknown";
  return el;
}

function opener(id, title, open) {
  const th = make("th"), button = make("button", format.id(id), "link long");
  th.scope = "row";
  button.type = "button";
  button.title = id.length >= 24 ? id : title;
  button.addEventListener("click", open);
  th.append(button);
  if (navigator.clipboard) th.append(copier(id));
  return th;
}

function copier(id) {
  const button = make("button", "", "copy link");
  button.type = "button";
  button.title = "Copy the whole ID";
  button.setAttribute("aria-label", `Copy ${id}`);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(id);
    button.dataset.done = "1";
    setTimeout(() => delete button.dataset.done, 1500);
  });
  return button;
}

function took(seconds, since) {
  const el = make("span", seconds === null ? (since === null ? "–" : "") : format.text(seconds, "seconds"));
  if (seconds !== null || since === null) return [el];
  el.dataset.since = since;
  return [el, note("so far")];
}

export const versions = (start, finish) => (start === null ? "–" : finish === null || finish === start ? `v${start}` : `v${start} to v${finish}`);

function parts(flight, group, queue) {
  const named = [[flight, "in flight"], [group, "in group"], [queue, "in queue"]].filter(([value]) => value);
  return named.map(([value, name]) => `${value} ${name}`).join(" + ");
}

function rollout(row) {
  const { rollout_id: id, life, environment, purpose, agent, engine, seconds, prompt_tokens: prompt, tool_calls: tools, reward, advantage, consumed: used, staleness: stale, sampled } = row;
  const tr = make("tr"), th = opener(id, "Show its timeline", () => openRollout(id, life));
  th.append(note([environment, purpose === "train" ? "" : purpose, agent, engine, sampled ? "sampled" : ""].filter(Boolean).join(" · ")));
  const staleness = make("span", stale === null ? "–" : String(stale));
  if (stale === null && row.unknown) staleness.title = row.unknown;
  tr.append(th, cellOf("State", statePill(row.state), note(row.error)), cellOf("Took", ...took(seconds, row.since)),
    cellOf("Tokens", make("span", count(row.response_tokens)), note([row.truncated ? "truncated" : "", prompt === null ? "" : `prompt ${count(prompt)}`].filter(Boolean).join(" · "))),
    cellOf("Turns", make("span", count(row.turn_count)), note(tools === null ? "" : `${count(tools)} tool call${tools === 1 ? "" : "s"}`)),
    cellOf("Reward", make("span", reward === null ? "–" : format.number(reward)), note(advantage === null ? "" : `advantage ${format.number(advantage)}`)),
    cellOf("Versions", make("span", versions(row.version_start, row.version_finish)), note([row.mixed ? "mixed" : "", used === null ? "" : `used at v${used}`].filter(Boolean).join(" · "))),
    cellOf("Staleness", staleness, note(parts(row.in_flight, row.in_group, row.in_queue))), cellOf("Last change", aged(row.moved_at)));
  tr.dataset.id = id;
  tr.dataset.life = life;
  // The whole row is a target; the button in it is what a keyboard reaches.
  tr.addEventListener("click", (event) => event.target.closest("button, a") || String(getSelection()) || openRollout(id, life));
  return tr;
}

// Lowest to highest reward of what any group got.
function spread(low, high, mean) {
  const el = make("span", "", "between"), [from, to] = reach();
  const place = (value) => (to > from ? (100 * (value - from)) / (to - from) : 50) + "%";
  const bar = make("i"), dot = make("b");
  bar.style.left = place(low);
  bar.style.right = `calc(100% - ${place(high)})`;
  dot.style.left = place(mean);
  el.append(bar, dot);
  return el;
}

function reach() {
  const lows = [0], highs = [1];
  for (const handle of state.view["group_rows.order"] || []) {
    const row = state.view["group_rows.r." + handle];
    if (row && row.reward_min !== null) lows.push(row.reward_min), highs.push(row.reward_max);
  }
  return [Math.min(...lows), Math.max(...highs)];
}

function group({ group_id: id, environment, purpose, size, members, done, valid, reward_min: low, reward_max: high, reward_mean: mean, solve_ratio: solved, outcome, admitted, version, moved_at: moved, spread: seconds, sampled }) {
  const tr = make("tr"), th = opener(id, "Show its rollouts", () => {
    ask({ group: id, state: null, find: null });
    by("ro-table").scrollIntoView({ block: "start" });
  });
  const number = format.number, known = low !== null;
  th.append(note([environment, purpose === "train" ? "" : purpose, version === null ? "" : `v${version}`, sampled ? "sampled" : ""].filter(Boolean).join(" · ")));
  const rewards = known ? [spread(low, high, mean), note(low === high ? `all ${number(low)}` : `${number(low)} to ${number(high)}, mean ${number(mean)}`)] : [make("span", "–")];
  const failed = done - valid;
  tr.append(th, cellOf("Rewards", ...rewards), cellOf("Solved", make("span", solved === null ? "–" : format.text(solved, "ratio")), note(`${done} of ${size ?? members} done${failed ? `, ${failed} failed` : ""}`)),
    cellOf("Outcome", statePill(outcome), note(admitted ? "trained" : "")), cellOf("Spread", make("span", seconds === null ? "–" : format.text(seconds, "seconds")), aged(moved)));
  tr.lastChild.lastChild.classList.add("note");
  return tr;
}

// ---- a table

class Table {
  constructor(name, prefix, draw, once) {
    this.name = name;
    this.prefix = prefix;
    this.draw = draw;
    this.once = once;
    this.seen = true;
    this.stale = false;
    this.begin();
  }

  // First page only, and live.
  begin() {
    this.more = [];
    this.next = null;
    delete state.once[this.once];
  }

  get body() {
    return document.querySelector(`[data-rows=${this.name}]`);
  }

  apply(cells) {
    const answer = cells[this.prefix + ".more"];
    if (answer && state.once[this.once] === answer.after) {
      this.more.push(...answer.rows);
      this.next = answer.next;
      delete state.once[this.once];
      for (const row of answer.rows) this.body.append(this.draw(row));
      return this.foot();
    }
    // Added pages are not live, so that rows do not shift while being read.
    if (!this.more.length && Object.keys(cells).some((key) => key.startsWith(this.prefix + "."))) this.render();
  }

  // Rows that stay are the same elements, so that neither focus nor a selection is lost.
  render() {
    const body = this.body, order = state.view[this.prefix + ".order"] || [];
    if (!body) return;
    // Out of sight only answers to the user's query are drawn; updates are drawn when the table is visible.
    if (!this.seen && body.rows.length && performance.now() - askedAt > ANSWER) return void (this.stale = true);
    this.stale = false;
    const known = new Map([...body.rows].map((tr) => [tr.dataset.handle, tr]));
    const rows = order.map((handle) => this.row(handle, known.get(handle)));
    rows.forEach((tr, i) => body.rows[i] !== tr && body.insertBefore(tr, body.rows[i] || null));
    while (body.rows.length > rows.length) body.lastChild.remove();
    this.next = state.view[this.prefix + ".after"] || "";
    this.foot();
    ages();
  }

  row(handle, old) {
    const cells = state.view[`${this.prefix}.r.${handle}`], mark = JSON.stringify(cells);
    if (old && old.mark === mark) return old;
    const tr = this.draw(cells), focus = old && old.contains(document.activeElement);
    tr.dataset.handle = handle;
    tr.mark = mark;
    if (old) old.replaceWith(tr);
    if (focus) tr.querySelector("button").focus();
    return tr;
  }

  foot() {
    const button = by("more-" + this.name), words = by("said-" + this.name), live = (state.view[this.prefix + ".order"] || []).length;
    button.hidden = !this.next;
    button.disabled = this.once in state.once;
    const none = live ? "" : this.name === "groups" ? "No matching groups." : "No matching rollouts.";
    words.replaceChildren(make("span", this.more.length ? `${count(live + this.more.length)} rows, not live. ` : none));
    if (this.more.length) words.append(this.back());
    ages();
  }

  back() {
    const button = make("button", "Back to the live list", "link");
    button.type = "button";
    button.addEventListener("click", () => {
      this.begin();
      this.render();
      by("more-" + this.name).focus();
    });
    return button;
  }

  bind() {
    const button = by("more-" + this.name);
    if (button.bound) return;
    button.bound = true;
    button.addEventListener("click", () => {
      state.once[this.once] = this.next;
      button.disabled = true;
      poke();
    });
    new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen && this.stale) this.render();
    }, { rootMargin: "200px" }).observe(this.body.closest("section"));
  }
}

const tables = { rollouts: new Table("rollouts", "rollout_rows", rollout, "after"), groups: new Table("groups", "group_rows", group, "more_groups") };

// ---- filters

const CENSUS = () => state.view["census.order"] || [];
const EXITS = ["trained", "zero_advantage", "stale", "surplus", "aborted_oversample", "truncated_drop", "env_error", "infra_error", "ended"];
const OUTCOMES = ["mixed", "all_solved", "none_solved", "equal_unknown", "too_few_valid", "open"];
const named = (names) => names.map((name) => [name, stateWord(name)]);
const SELECTS = [
  ["state", "State", () => [["", "any state"], ["in_flight", "in flight"], ...named(CENSUS()), ...named(EXITS)]],
  ["environment", "Environment", () => [["", "any environment"], ...(state.view["rollouts.envs"] || []).map((name) => [name, name])]],
  ["purpose", "Purpose", () => [["", "any purpose"], ["train", "train"], ["eval", "eval"], ["judge", "judge"]]],
  ["mixed", "Versions", () => [["", "any versions"], ["1", "mixed versions"], ["0", "one version"]]],
];

function select(name, title, choices) {
  const label = make("label"), el = make("select");
  el.dataset.filter = name;
  el.choices = choices;
  el.addEventListener("change", () => ask({ [name]: el.value || null }));
  label.append(make("span", title, "sr"), el);
  return label;
}

let timer = null;
function finder() {
  const label = make("label"), input = make("input");
  Object.assign(input, { type: "search", placeholder: "ID starts with", maxLength: 200, autocomplete: "off", spellcheck: false });
  input.dataset.filter = "find";
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => ask({ find: input.value.trim() || null }), input.value.trim() ? WAIT : 0);
  });
  label.append(make("span", "Find rollouts or groups whose ID starts with", "sr"), input);
  return label;
}

function chip() {
  const el = make("button", "", "chip-filter");
  el.type = "button";
  el.id = "ro-group";
  el.addEventListener("click", () => ask({ group: null }));
  return el;
}

function build() {
  const where = by("ro-filters");
  if (where.firstElementChild) return;
  const clear = make("button", "Clear filters", "link");
  Object.assign(clear, { type: "button", id: "ro-clear" });
  clear.addEventListener("click", () => ask(Object.fromEntries([...SELECTS.map(([name]) => name), "find", "group"].map((name) => [name, null]))));
  where.append(finder(), ...SELECTS.map((one) => select(...one)), chip(), clear);
  by("group-filter").append(select("outcome", "Outcome", () => [["", "any outcome"], ...named(OUTCOMES)]));
  for (const button of all("#ro-table [data-sort]")) button.addEventListener("click", () => order(button.dataset.sort));
  for (const table of Object.values(tables)) table.bind();
}

const sorted = () => param("sort") || "seconds";
const ascending = () => param("order") === "asc";
function order(name) {
  const turn = name === sorted() ? !ascending() : false;
  ask({ sort: name === "seconds" ? null : name, order: turn ? "asc" : null });
}

// Choices change; the selected one stays, even if it is no longer offered (an old address).
function offer(el) {
  const value = param(el.dataset.filter), choices = el.choices(), key = JSON.stringify([choices, value]);
  if (el.key === key) return;
  el.key = key;
  if (!choices.some(([name]) => name === value)) choices.push([value, value.split(",").map(stateWord).join(" or ")]);
  el.replaceChildren(...choices.map(([name, words]) => Object.assign(make("option", words), { value: name })));
  el.value = value;
}

function show() {
  if (!here() || !by("ro-filters") || !by("ro-filters").firstElementChild) return;
  for (const el of all("select[data-filter]")) offer(el);
  const input = document.querySelector("input[data-filter=find]");
  if (document.activeElement !== input) input.value = param("find");
  const group = param("group"), chosen = by("ro-group");
  chosen.hidden = !group;
  chosen.textContent = `group ${group} ×`;
  chosen.title = "Show all groups";
  by("ro-clear").hidden = !["state", "environment", "purpose", "mixed", "find", "group"].some(param);
  for (const button of all("#ro-table [data-sort]")) {
    const th = button.closest("th");
    if (button.dataset.sort === sorted()) th.setAttribute("aria-sort", ascending() ? "ascending" : "descending");
    else th.removeAttribute("aria-sort");
  }
  links();
}

// ---- exports

export const api = (path) => `${by("app").dataset.base}api/v1/runs/${encodeURIComponent(state.boot.run)}/${path}`;

function links() {
  const query = new URLSearchParams(), states = param("state");
  query.set("format", "csv");
  for (const name of states === "in_flight" ? CENSUS() : states.split(",").filter(Boolean)) query.append("state", name);
  for (const name of ["environment", "purpose", "group", "find"]) if (param(name)) query.set(name, param(name));
  if (param("mixed")) query.set("mixed", param("mixed") === "1" ? "true" : "false");
  query.set("sort", sorted());
  query.set("order", ascending() ? "asc" : "desc");
  const [start, end] = range().map((ms) => Math.round((ms - state.tz) / 1000)), time = { start, end };
  if (state.view["rollout_rows.timed"]) for (const [name, value] of Object.entries(time)) query.set(name, value);
  by("ro-csv").href = api("rollouts?" + query);
  by("ro-trace").href = api("rollouts/trace?" + new URLSearchParams(time));
}

drawers.push((cells) => {
  if (!by("ro-filters") || !("rollouts.mode" in state.view)) return;
  if ("rollouts.mode" in cells) tables.rollouts.begin(), tables.groups.begin();
  build();
  for (const table of Object.values(tables)) table.apply(cells);
  show();
});
