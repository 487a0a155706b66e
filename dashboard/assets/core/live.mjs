// The live path: a timer requests one small delta, which is drawn here; Dash only transports it.
import { attach } from "../widgets/attach.mjs";
import { showRange, unzoomed } from "./address.mjs";
import { ages, clockOf, fill, reindex } from "./cells.mjs";
import { all, by } from "./dom.mjs";
import * as format from "./format.mjs";
import { jump, navigated, present } from "./nav.mjs";
import { listen, pushed } from "./news.mjs";
import { painters, state } from "./state.mjs";
import { showTheme } from "./theme.mjs";
import { bind, chartsReady, figure, grow, range, slide, unzoom } from "../widgets/chart.mjs";
import { settled } from "../widgets/chart_menu.mjs";
import { chartOf } from "../widgets/legend.mjs";
import { drawSpark } from "../widgets/spark.mjs";
import { overSteps } from "../widgets/step_axis.mjs";

const LOST = 6000, GIVE_UP = 6000, IDLE_TICKS = 80, LOOK = 8;
// Timer ticks (9 s) between polls of a tab with an open socket: longer than most runs' ticks, so that it polls only
// after notifications. An open socket alone does not prove that the server works, so the loss limit is longer too.
const QUIET = 12, LOST_PUSHED = 15000;
const none = () => window.dash_clientside.no_update;
const since = (then) => performance.now() - then;
let requested = null, requestedAt = 0, pulledAt = 0, answeredAt = 0, sent = 0, tick = 0, sentTick = 0, paused = false, clock = null;
// When the tab was last resumed or shown: a paused or hidden tab sends no requests, which is no loss of connection.
let awakeAt = 0;
let looked = false, notified = false, waiting = "";

// The server's clock: a demo's may run apart from the browser's.
export const ticks = () => tick;
export const asked = () => (requested ? requested.search : "");
export const busy = () => state.view["preflight.busy"] === 1;
export const now = () => state.boot.now + since(answeredAt) / 1000;

const touch = () => matchMedia("(pointer: coarse)").matches;
const mounted = (place) => place && place.firstElementChild;
function ask(path, search) {
  const have = all("[data-place]").filter(mounted).map((place) => place.dataset.place);
  requested = { path, search, have, tz: state.tz / 1000, touch: touch(), n: (requested ? requested.n : 0) + 1 };
  requestedAt = performance.now();
  return requested;
}

// History was rewritten, or a series began: load this range again.
export function reload() {
  if (requested && state.boot && requested.n !== state.boot.page && since(requestedAt) < GIVE_UP) return;
  window.dash_clientside.set_props("view", { data: ask(requested.path, unzoomed(requested.search)) });
}

function open(pathname, search) {
  if (requested && requested.search !== search) unzoom();
  showTheme();
  start();
  const path = String(pathname || "").slice(by("app").dataset.base.length);
  if (requested && requested.path !== path) by("app").dataset.page = "loading";
  return ask(path, search || "");
}

function start() {
  if (clock) return;
  clock = setInterval(heartbeat, 1000);
  by("live").addEventListener("click", () => {
    paused = !paused;
    wake();
  });
  document.addEventListener("visibilitychange", wake);
  for (const name of ["pointermove", "keydown", "focus"]) window.addEventListener(name, () => (looked = true), { passive: true });
  // Runs change while a page is open, so the menu is loaded again when it is opened.
  by("run-menu").addEventListener("toggle", () => by("run-menu").open && !paused && state.boot && reload());
}

function wake() {
  awakeAt = performance.now();
  heartbeat();
}

function heartbeat() {
  if (!state.boot || state.boot.error) return;
  bind();
  ages();
  navigated();
  showRange();
  listen(!paused && !document.hidden);
  // Dash's links take no aria attributes; the current one must not be marked by colour alone.
  for (const link of all("#runs a, #ranges a"))
    if (link.classList.contains("current")) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  const lost = since(Math.max(answeredAt, awakeAt)) > (pushed() ? LOST_PUSHED : LOST) && !document.hidden;
  // A page about all runs has no state of one run: there the word is about the connection.
  const run = state.view.run_state || { name: "live", word: "Live" };
  const past = pastAt(), live = run.name === "live" && past !== undefined && past < now() - 10;
  const shown = paused ? "paused" : run.name === "finished" ? "over" : lost ? "lost" : live ? "past" : run.name;
  const button = by("live"), newest = state.view.newest;
  button.dataset.live = shown;
  button.title = paused ? "Resume live updates" : "Pause live updates";
  button.setAttribute("aria-pressed", String(paused));
  by("live-word").textContent = { paused: "Paused", lost: "No connection", past: "Past range" }[shown] || run.word;
  by("live-age").textContent = aged(shown, run, newest);
}

function aged(state, run, newest) {
  const lasts = run.since ? format.span(now() - run.since) : "";
  if (state === "past") return "as of " + clockOf(pastAt());
  if (state === "catching_up") return run.says || "reading history";
  if (state === "not_collected") return lasts && "for " + lasts;
  if (state === "stale") return lasts ? "no new data for " + lasts : "no data yet";
  return newest ? (state === "over" ? "ended " : "updated ") + format.age(now() - newest) : "no data yet";
}

// While a run catches up its charts end in the past: the window is another one.
const catches = () => (state.view.run_state || {}).name === "catching_up";

function boot(found) {
  if (!found || (requested && found.page !== requested.n)) return none();
  const place = document.querySelector(`[data-place="${found.key}"]`);
  // Dash puts a new page's elements into the document after this callback.
  if (!found.error && !mounted(place)) return requestAnimationFrame(() => boot(found)), none();
  state.boot = found;
  // A drawer's page keeps the texts of the page under it.
  const over = present(found.error ? null : place);
  if (!over) by("app").dataset.shown = found.key;
  answeredAt = performance.now();
  pulledAt = 0;
  by("app").dataset.page = found.error ? "error" : "ok";
  by("run-name").textContent = by("run-name").title = found.run || "no run";
  by("app").dataset.empty = found.title ? "1" : "";
  by("message-title").textContent = found.title || "Nothing to show";
  by("message").textContent = found.error || "";
  const back = by("message-back"), { text, page, query } = found.back || {};
  back.hidden = !found.back;
  back.textContent = text || "";
  if (found.back) back.href = by("app").dataset.base + page + query;
  attach(by("message-found"), found.found, found.push);
  navigated();
  if (found.error) return none();
  reindex();
  if (!over) for (const key of Object.keys(state.view)) if (!(key in found.view)) found.view[key] = null;
  fill(found.view);
  state.boot.catches = catches();
  for (const [key, drawn] of Object.entries(found.figures || {})) figure(key, overSteps(drawn));
  delete found.figures;
  state.sparks = found.sparks || {};
  for (const el of all("[data-spark]")) drawSpark(el.dataset.spark);
  for (const paint of painters) paint();
  states();
  heartbeat();
  seen(found.cursor);
  settle(found);
  jump();
  return none();
}

// Once what is near the screen is drawn, it listens, and a zoom that is still wanted is set again.
function settle(found) {
  if (state.boot !== found) return;
  if (!chartsReady()) return void requestAnimationFrame(() => settle(found));
  bind();
  if (state.zoom) slide();
  settled();
}

// A panel shows its chart when it has points, and the reason when it has none. A line that is drawn has a legend,
// also while it has no value.
export function states() {
  if (!state.boot.drawn) return;
  for (const b of all("[data-slot]")) b.parentNode.dataset.drawn = state.boot.drawn.includes(b.dataset.slot) ? "1" : "";
  for (const el of all("[data-panel]")) {
    const now = chartOf(el.dataset.panel)?.state;
    const has = state.boot.drawn.some((slot) => slot.split(".")[0] === el.dataset.panel);
    el.dataset.state = has ? (now === "ok" ? "data" : "stale") : now === "ok" ? "empty" : now;
    if (el.dataset.state === "empty") el.querySelector(".why p").textContent = "No points in this time range.";
  }
}

function pull() {
  tick++;
  // The first load, or a change of run, failed: request it again.
  if (requested && (!state.boot || state.boot.page !== requested.n) && since(requestedAt) > GIVE_UP) reload();
  // The run may appear later: an empty page is loaded again from time to time.
  if (state.boot && state.boot.error && state.boot.page === requested.n && !document.hidden && tick % LOOK === 0) reload();
  if (!state.boot || state.boot.error || paused || document.hidden || state.boot.page !== requested.n) return none();
  // A tick while a call is pending is skipped, so a slow server is not flooded. Dash does not report
  // failed calls: after a while a call counts as lost, and the next one is sent.
  if ((pulledAt && since(pulledAt) < GIVE_UP) || !chartsReady()) return none();
  if (state.boot.over && !state.boot.all && !busy() && resting()) return none();
  // With an open socket only notifications cause polls, and a slow timer that detects a lost server.
  if (pushed() && !notified && tick - sentTick < QUIET) return none();
  return request();
}

// A run that is over changes only by a running pre-flight, a restart after a crash, or a new start.
// It is polled rarely, and only while the user is active.
const resting = () => tick % IDLE_TICKS > 0 || !(looked || state.view.life === "crashed");

function request(fresh) {
  looked = notified = false;
  bind();
  pulledAt = performance.now();
  sentTick = tick;
  const { page, key, run, all, cursor, have } = state.boot;
  const span = state.boot.timed ? [state.boot.start, state.boot.end, state.boot.follow] : undefined;
  return { page, key, run, all: all || undefined, cursor, have, span, at: pastAt(), ask: question(), fresh, n: ++sent };
}

// The end of a zoom or an absolute range, epoch seconds; texts describe it instead of the present.
export const pastAt = () => (state.zoom ? Math.round((range()[1] - state.tz) / 1000) : state.boot.at) ?? undefined;

// Parameters of a request in addition to run and time: the page's own, and one-time parameters (`state.once`).
function question() {
  const query = new URLSearchParams(location.search), found = new URLSearchParams(state.once);
  for (const name of state.boot.asks) if (query.has(name)) found.set(name, query.get(name));
  return found.toString() || undefined;
}

// Polls at once, or after the pull in progress. `fresh`: bypasses the server's caches.
function look(kind) {
  if (!state.boot || state.boot.error || !chartsReady()) return;
  const busy = pulledAt && since(pulledAt) < GIVE_UP;
  waiting = !busy ? "" : waiting === "fresh" ? waiting : kind;
  if (!busy) window.dash_clientside.set_props("pull", { data: request(kind === "fresh" || undefined) });
}

// Called after a change made on this page.
export const poke = () => look("fresh");
// Called for new data on the server; a page that is being loaded has it, or gets it at its next tick.
export function news() {
  notified = true;
  if (!paused && !document.hidden && requested && state.boot && state.boot.page === requested.n) look("news");
}

function apply(delta) {
  if (!delta || !state.boot || delta.page !== state.boot.page) return none();
  pulledAt = 0;
  if (delta.reset) return reload(), none();
  Object.assign(state.boot, { cursor: delta.cursor, have: delta.have, now: delta.now });
  answeredAt = performance.now();
  const cells = delta.view || {};
  for (const [key, fields] of Object.entries(delta.fields || {})) cells[key] = { ...state.view[key], ...fields };
  fill(cells);
  const over = ["finished", "crashed"].includes(state.view.life);
  if (over !== state.boot.over || catches() !== state.boot.catches) return reload(), none();
  if (delta.view || delta.fields) states();
  draw(delta.points || {});
  heartbeat();
  seen(delta.cursor);
  if (waiting && !((paused || document.hidden) && waiting === "news")) look(waiting);
  return none();
}

// Up to where the page shows what is stored: what tests and benchmarks wait for.
const seen = (cursor) => (by("app").dataset.seq = cursor || "");

function draw(points) {
  // An absolute time stands still, its small lines too.
  if (!state.boot.follow) return;
  const byPanel = {};
  for (const [slot, found] of Object.entries(points)) {
    const [panel] = slot.split(".");
    if (panel === "card") sparkle(slot, found);
    else (byPanel[panel] ||= {})[slot] = found;
  }
  for (const [panel, found] of Object.entries(byPanel)) grow(panel, found);
  slide();
}

function sparkle(key, [ts, vs]) {
  const [xs, ys] = (state.sparks[key] ||= [[], []]);
  const width = 1000 * (state.boot.end - state.boot.start), step = width / 60;
  ts.forEach((t, i) => {
    const last = xs.length - 1;
    if (last >= 0 && t - xs[last] < step && vs[i] !== null) ys[last] = vs[i];
    else xs.push(t), ys.push(vs[i]);
  });
  while (xs.length > 2 && xs[1] < ts[ts.length - 1] - width) xs.shift(), ys.shift();
  drawSpark(key);
}

export const callbacks = { open, boot, pull, apply };
