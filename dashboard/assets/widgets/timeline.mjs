// One rollout: its timeline, its group, its turns. Opened by a row or by its address, closed by Esc.
import { ages } from "../core/cells.mjs";
import { all, by, cellOf, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { api, ask, statePill, versions } from "./rollout_table.mjs";
import { stateWord } from "./rollouts.mjs";
import { fitted, svg } from "./svg.mjs";

const RIGHT = 8, LANE = 26, THIN = 7, SHADES = 8;
const KINDS = { queued: "waiting for a slot", boot: "sandbox booting", generate: "generating", prefill: "prefill", decode: "decode", tool: "tool",
  scoring: "scoring", waiting_group: "waiting for siblings", in_queue: "in the queue", suspended: "suspended" };
const BARS = ["dispatched_at", "started_at", "finished_at"];
const MADE = ["generate", "prefill", "decode"];
const openId = () => new URLSearchParams(location.search).get("rollout") || "";
const place = () => by("ro-open");
let shownId = null;

export const openRollout = (id, life) => ask({ rollout: id, life: String(life) }, openId() === "");
const close = () => {
  const id = openId();
  ask({ rollout: null, life: null }, true);
  const row = all("[data-rows=rollouts] tr").find((tr) => tr.dataset.id === id);
  if (row) row.querySelector("button").focus();
};

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !place() || place().hidden || by("run-menu").open) return;
  event.preventDefault();
  close();
});

// ---- frame

// Opens before its cells have arrived, so that a click has an effect at once.
export function showOpen() {
  const panel = place(), id = openId();
  if (!panel) return;
  panel.hidden = !id || state.view["rollouts.mode"] !== "ok";
  if (panel.hidden) return void ((shownId = null), panel.replaceChildren());
  if (shownId !== id) frame(panel, id);
  const cell = state.view.rollout_detail;
  for (const tr of all("[data-rows=rollouts] tr")) tr.classList.toggle("opened", tr.dataset.id === id);
  if (cell && cell.row.rollout_id === id) fill(cell);
  else if (state.view["rollout_detail.none"] === id) by("ro-open-body").replaceChildren(make("p", "No rollout with this ID in this run.", "note"));
}

function frame(panel, id) {
  shownId = id;
  const head = make("div", "", "open-head"), title = make("h2", id, "long"), shut = make("button", "Close", "more");
  title.id = "ro-open-title";
  title.title = id;
  shut.type = "button";
  shut.title = "Esc";
  shut.addEventListener("click", close);
  head.append(title, shut);
  const body = make("div", "", "open-body"), links = make("p", "", "open-links");
  body.id = "ro-open-body";
  body.append(make("p", "Loading …", "note"));
  panel.replaceChildren(head, links, body);
  panel.scrollTop = 0;
  exports(links, id);
  shut.focus();
}

function exports(where, id) {
  const link = make("a", "Link"), trace = make("a", "Perfetto"), life = new URLSearchParams(location.search).get("life");
  const of = life ? `?life=${encodeURIComponent(life)}` : "";
  link.href = location.pathname + query();
  link.title = "This view, to share";
  trace.href = api(`rollouts/${encodeURIComponent(id)}/trace${of}`);
  trace.download = "";
  trace.title = "Its timeline, for ui.perfetto.dev";
  where.append(link, trace);
  if (!navigator.clipboard) return;
  const copy = make("button", "Copy link", "link");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(new URL(link.href, location.href).href);
    copy.textContent = "Copied";
  });
  where.append(copy);
}

// ---- body

let drawn = "";
function fill(cell) {
  // Open spans grow, so they are drawn again every 5 s.
  const lasts = cell.spans.some(({ end }) => end === null) ? Math.floor(now() / 5) : 0;
  const body = by("ro-open-body"), mark = [JSON.stringify(cell), body.clientWidth, lasts].join();
  if (body.mark === mark && drawn === mark) return;
  body.mark = drawn = mark;
  const figure = make("div", "", "timeline");
  body.replaceChildren(facts(cell), figure, keys(cell), ...remarks(cell), numbers(cell), ...turns(cell));
  timeline(figure, cell);
  ages();
}

function facts({ row }) {
  const { life, group_id: group, environment, purpose, agent, engine, state } = row, el = make("p", "", "row");
  el.append(statePill(state), make("span", [environment, purpose, agent, engine, `incarnation ${life}`].filter(Boolean).join(" · "), "note"));
  if (!group) return el;
  const button = make("button", `group ${group}`, "link long");
  button.type = "button";
  button.addEventListener("click", () => ask({ group, state: null, find: null, rollout: null, life: null }, true));
  el.append(button);
  return el;
}

function remarks(cell) {
  const { error, unknown } = cell.row, found = [];
  if (error) found.push(make("p", error, "error"));
  if (unknown) found.push(make("p", unknown, "note"));
  if (!cell.told && cell.spans.length) found.push(make("p", "No spans reported; the bars come from the times in the record.", "note"));
  const lacks = BARS.filter((name) => cell.times[name] === undefined), none = Object.keys(cell.times).length ? "The reported times give no bar" : "No times reported";
  if (!cell.spans.length) found.push(make("p", `${none}: ${lacks.length ? "push " + lacks.join(", ") : "they are out of order"}.`, "note"));
  return found;
}

// Every policy version has its shade, newest strongest.
function shades(cell) {
  const versions = [...new Set(cell.spans.filter(({ kind, version }) => MADE.includes(kind) && version !== null).map(({ version }) => version))].sort((a, b) => a - b);
  return new Map(versions.map((version, i) => [version, versions.length > 1 ? 0.35 + (0.65 * i) / (versions.length - 1) : 1]));
}

// Spans that overlap (a tool that runs on) get lanes of their own.
function lanes(spans, now) {
  const ends = [];
  return spans.map((span) => {
    const { start, end } = span;
    let lane = ends.findIndex((until) => until <= start + 1e-3);
    if (lane < 0) lane = ends.length;
    ends[lane] = end === null ? now : Math.max(end, start);
    return [lane, span];
  });
}

function extent(cell, now) {
  const ats = cell.spans.flatMap(({ start, end }) => [start, end === null ? now : end]).concat(Object.values(cell.times), cell.used.map(({ at }) => at).filter((at) => at !== null));
  for (const { start, finished_at: end } of cell.siblings) if (start !== null && start !== undefined) ats.push(start, end ?? now);
  return ats.length ? [Math.min(...ats), Math.max(...ats, Math.min(...ats) + 1)] : null;
}

function timeline(where, cell) {
  const at = Math.round(now()), range = extent(cell, at);
  if (!range || !where.clientWidth) return;
  const [start, end] = range, placed = lanes(cell.spans, at), rows = Math.max(1, ...placed.map(([lane]) => lane + 1));
  const wide = where.clientWidth - RIGHT, x = (at) => (wide * (at - start)) / (end - start);
  const top = 22, below = top + rows * LANE + 8, many = cell.siblings.length, height = below + (many ? 20 + many * (THIN + 3) : 0) + 22;
  const el = svg("svg", { width: where.clientWidth, height, role: "group", "aria-label": summary(cell, at) });
  where.replaceChildren(el);
  axis(el, { start, end, x, height });
  marks(el, cell, { start, end, x, top: 14, bottom: height - 20 });
  const shade = shades(cell);
  for (const [lane, span] of placed) bar(el, span, shade, { x, y: top + lane * LANE, now: at });
  for (const { version, at } of cell.used) if (at !== null) used(el, x(at), top, rows, version);
  if (many) siblings(el, cell, { x, y: below, now: at });
}

function bar(el, { kind, start, end, version, detail: words }, shade, { x, y, now }) {
  const left = x(start), long = Math.max(1.5, x(end === null ? now : end) - left), made = MADE.includes(kind) && version !== null;
  const rect = svg("rect", { x: left.toFixed(1), y, width: long.toFixed(1), height: LANE - 6, rx: 2, class: `span ${kind}${end === null ? " lasts" : ""}` });
  if (made) rect.setAttribute("fill-opacity", shade.get(version).toFixed(2));
  const name = KINDS[kind] || kind, said = [name, made ? `v${version}` : "", format.text((end === null ? now : end) - start, "seconds") + (end === null ? " so far" : ""), words].filter(Boolean).join(" · ");
  rect.append(svg("title", {}, said));
  el.append(rect);
  const label = made ? `v${version}` : name;
  if (long > 6.2 * label.length + 10) el.append(svg("text", { x: left + 5, y: y + 14, class: `in ${kind}${made && shade.get(version) < 0.7 ? " pale" : ""}` }, label));
}

function used(el, x, top, rows, version) {
  const y = top + rows * LANE - 3, mark = svg("path", { d: `M${x} ${top - 6}V${y}M${x - 5} ${top - 8}h10l-5 7z`, class: "used" });
  mark.append(svg("title", {}, version === null ? "consumed" : `consumed at v${version}`));
  el.append(mark);
}

function axis(el, { start, end, x, height }) {
  const steps = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400], most = Math.max(2, x(end) / 80);
  const step = steps.find((s) => (end - start) / s <= most) || (end - start) / 4, y = height - 6;
  for (let after = 0; after <= end - start; after += step) {
    const at = x(start + after), words = after ? format.text(after, "seconds") : "0";
    el.append(svg("line", { x1: at, x2: at, y1: 16, y2: height - 20, class: "grid" }));
    el.append(svg("text", { x: Math.min(at, x(end) - 14), y, "text-anchor": after ? "middle" : "start" }, words));
  }
}

function marks(el, { updates }, { start, end, x, top, bottom }) {
  let free = -1e9;
  for (const { ts: at, version } of updates) {
    if (at < start || at > end) continue;
    const line = svg("path", { d: `M${x(at).toFixed(1)} ${top}V${bottom}`, class: "marks" });
    line.append(svg("title", {}, version === null ? "weights published" : `v${version} published`));
    el.append(line);
    if (version === null || x(at) < free || x(at) > x(end) - 20) continue;
    el.append(svg("text", { x: x(at), y: 10, "text-anchor": "middle", class: "mark" }, `v${version}`));
    free = x(at) + 40;
  }
}

function siblings(el, cell, { x, y, now }) {
  const rest = cell.sibling_count > cell.siblings.length ? ` (${cell.siblings.length} drawn)` : "";
  el.append(svg("text", { x: 0, y: y + 10 }, `${cell.sibling_count} sibling${cell.sibling_count === 1 ? "" : "s"}${rest}`));
  cell.siblings.forEach(({ rollout_id: id, life, state, start, finished_at: end, reward, version_start: version, response_tokens: tokens }, i) => {
    const at = y + 18 + i * (THIN + 3), known = start !== null && start !== undefined, words = [id, stateWord(state), reward === null ? "" : `reward ${format.number(reward)}`, tokens === null ? "" : `${tokens.toLocaleString("en")} tokens`].filter(Boolean).join(" · ");
    const link = svg("a", { href: location.pathname + query({ rollout: id, life }), "aria-label": words });
    const left = known ? x(start) : 0, long = known ? Math.max(3, x(end ?? now) - left) : 6;
    // As high as the row, so that it can be hit.
    link.append(svg("rect", { x: left, y: at - 1.5, width: Math.max(24, long), height: THIN + 3, fill: "transparent" }), svg("rect", { x: left.toFixed(1), y: at, width: long.toFixed(1), height: THIN, rx: 2, class: `sibling ${reward === null ? "none" : reward > 0 ? "some" : "zero"}` }));
    link.append(svg("title", {}, words + (version === null ? "" : ` · v${version}`)));
    link.addEventListener("click", (event) => {
      if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      openRollout(id, life);
    });
    el.append(link);
  });
}

function summary(cell, now) {
  const sums = new Map();
  for (const { kind, start, end } of cell.spans) sums.set(kind, (sums.get(kind) || 0) + (end === null ? now : end) - start);
  return "Timeline: " + [...sums].map(([kind, seconds]) => `${KINDS[kind] || kind} ${format.text(seconds, "seconds")}`).join(", ");
}

function keys(cell) {
  const el = make("p", "", "legend"), item = (name, words, opacity) => {
    const span = make("span", "", "item"), swatch = make("i", "", `swatch k-${name}`);
    if (opacity) swatch.style.opacity = opacity;
    span.append(swatch, words);
    el.append(span);
  };
  const versions = [...shades(cell)];
  if (versions.length <= SHADES) for (const [version, opacity] of versions) item("generate", `v${version}`, opacity);
  else item("ramp", `v${versions[0][0]} to v${versions.at(-1)[0]}, newest strongest`);
  for (const kind of new Set(cell.spans.filter(({ kind, version }) => !MADE.includes(kind) || version === null).map(({ kind }) => kind))) item(kind, KINDS[kind] || kind);
  if (cell.used.some(({ at }) => at !== null)) item("used", "consumed");
  if (cell.updates.length) item("mark", "new weights");
  if (cell.siblings.length) item("some", "sibling with a reward"), item("zero", "without");
  return el;
}

// ---- numbers

function numbers(cell) {
  const { seconds, prompt_tokens: prompt, response_tokens: response, tool_calls: tools, reward, advantage, consumed: used, staleness: stale, in_flight: flight, in_group: group, in_queue: queue, token_staleness: token, environment_staleness: state, old_state_turns: old, loss_tokens: loss } = cell.row;
  const number = format.number, count = (value) => value.toLocaleString("en"), dl = make("dl", "", "numbers-of");
  const split = [[flight, "in flight"], [group, "in group"], [queue, "in queue"]].filter(([value]) => value !== null).map(([value, name]) => `${value} ${name}`).join(" + ");
  const mean = (value) => `${number(value)} version${value === 1 ? "" : "s"}, mean`;
  const pairs = [
    ["Staleness", stale === null ? "–" : [`${stale} version${stale === 1 ? "" : "s"}`, split].filter(Boolean).join(" = ")],
    ["Token staleness", token === null ? "–" : mean(token)],
    ["Environment staleness", state === null ? "–" : mean(state) + (cell.row.environment_bound ? " (upper bound)" : "")],
    ["Turns on older state", old === null ? "–" : `${old} of ${cell.row.judged_turns ?? "?"}`],
    ["Versions", versions(cell.row.version_start, cell.row.version_finish) + (cell.used.length ? `, consumed at ${cell.used.map(({ version, life }) => (version === null ? "?" : "v" + version) + (life !== null && life !== cell.row.life ? ` of incarnation ${life}` : "")).join(", ")}` : used === null ? "" : `, consumed at v${used}`)],
    ["Tokens by version", byVersion(cell.versions)],
    ["Tokens", [prompt === null ? "" : `prompt ${count(prompt)}`, response === null ? "" : `response ${count(response)}`, loss === null ? "" : `in the loss ${count(loss)}`].filter(Boolean).join(", ") || "–"],
    ["Reward", reward === null ? "–" : number(reward) + (advantage === null ? "" : `, advantage ${number(advantage)}`)],
    ["Took", seconds === null ? "–" : format.text(seconds, "seconds") + (tools === null ? "" : `, ${count(tools)} tool call${tools === 1 ? "" : "s"}`)],
    ["Sandbox", cell.boxes.map(({ id, provider, state: what }) => [id, provider, what].filter(Boolean).join(" · ")).join("; ") || "–"],
  ];
  for (const [name, value] of pairs) dl.append(make("dt", name), make("dd", value));
  return dl;
}

function byVersion(versions) {
  const some = versions.slice(0, SHADES).map(([version, tokens]) => `v${version}: ${tokens.toLocaleString("en")}`), more = versions.length - some.length;
  return some.length ? some.join(", ") + (more ? `, and ${more} more` : "") : "–";
}

function turns(cell) {
  if (!cell.turn_count) {
    const words = cell.row.detailed ? "No turns reported." : "Turns are stored only for slow, failed and mixed rollouts, and for a sample.";
    return [make("h3", "Turns"), make("p", words, "note")];
  }
  const table = make("table"), head = make("tr"), body = make("tbody"), frame = make("div", "", "frame");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Turns");
  for (const name of ["Turn", "Policy", "Tool calls", "Environment", "State age"]) head.append(Object.assign(make("th", name), { scope: "col" }));
  cell.turns.forEach((turn, i) => body.append(turnRow(turn, i, cell)));
  const thead = make("thead");
  thead.append(head);
  table.append(thead, body);
  frame.append(table);
  const more = cell.turn_count > cell.turns.length ? [make("p", `The first ${cell.turns.length} of ${cell.turn_count.toLocaleString("en")}.`, "note")] : [];
  return [make("h3", "Turns"), frame, ...more];
}

const versionsOld = (age) => (age === 0 ? "0, same policy" : `${age} version${age === 1 ? "" : "s"}`);
function turnRow({ version, tool_calls: tools, mutated, reset, sandbox_id: box, age, latest }, i, cell) {
  const tr = make("tr"), th = make("th", String(i + 1));
  th.scope = "row";
  const did = [reset ? "reset before" : "", mutated === true ? "changed it" : mutated === false ? "changed nothing" : tools ? "may have changed it" : ""].filter(Boolean).join(", ");
  const several = new Set(cell.turns.map((turn) => turn.sandbox_id)).size > 1;
  tr.append(th, cellOf("Policy", make("span", version === null ? "–" : "v" + version)), cellOf("Tool calls", make("span", tools === null ? "–" : String(tools))),
    cellOf("Environment", make("span", did || "–"), make("span", several ? box : "", "note")),
    cellOf("State age", make("span", age === null ? "–" : versionsOld(age)), make("span", latest !== null && latest !== age ? `latest change ${latest}` : "", "note")));
  return tr;
}

drawers.push(() => {
  if (!place() || !("rollouts.mode" in state.view)) return;
  if (openId() !== "" || !place().hidden) showOpen();
  fitted(place(), () => state.view.rollout_detail && !place().hidden && showOpen());
});
