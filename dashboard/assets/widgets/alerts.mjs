// Alerts: cards, short rows and tables from the cells of `dashboard/pages/alerts/data.py`. Only text nodes: a label is never markup.
import { clockOf, list, reindex, touched } from "../core/cells.mjs";
import { all, by, cellOf, make } from "../core/dom.mjs";
import { go, path, query } from "../core/nav.mjs";
import { drawers, state } from "../core/state.mjs";
import { endSilence, silenceForm } from "./silence.mjs";

const MARKS = { critical: "●", watch: "▲", unknown: "◆", ok: "✓" };
const bits = {};

function pill(words, state) {
  const el = make("span", words, "pill");
  el.dataset.state = state;
  return el;
}

function mark(state) {
  const el = make("span", MARKS[state] || MARKS.unknown, "mark");
  el.dataset.state = state;
  el.setAttribute("aria-hidden", "true");
  return el;
}

// An element whose text is a cell; the fill in progress writes it.
function cell(tag, key, name) {
  const el = make(tag, "", name);
  el.dataset.t = key;
  return el;
}

function timed(kind, at, before) {
  const outer = make("span", before, "age-of"), el = make("b");
  el.dataset[kind] = at;
  outer.append(el);
  outer.title = new Date(at * 1000).toLocaleString();
  return outer;
}

const time = (at) => {
  const el = make("time", clockOf(at));
  el.dateTime = new Date(at * 1000).toISOString();
  el.title = new Date(at * 1000).toLocaleString();
  return el;
};

function chips(labels) {
  const el = make("ul", "", "chips");
  for (const [name, value] of labels) {
    const li = make("li");
    li.append(make("span", name + "="), make("b", value));
    el.append(li);
  }
  return el;
}

function chartLink(row) {
  const { start, end, panel, page } = row.chart, link = make("a", "View charts at " + clockOf(row.fired ?? row.at));
  link.dataset.in = page;
  link.href = path(page) + query({ run: row.run, start, end }) + (panel ? "#panel-" + panel : "");
  return link;
}

const shownLabels = (row) => Object.entries(row.labels).filter(([name]) => name !== "severity" && (name !== "run" || state.boot.all));

// What is drawn again when its row changes; buttons and an open form are not in it, so focus stays.
function facts(id, list) {
  const row = state.view["alert." + id], extra = state.view[`alert.${id}.x`] || {};
  const head = make("div", "", "row");
  const name = make("h3", row.name);
  name.title = row.alert;
  head.append(mark(row.s), pill(row.sev, row.s), name);
  if (list === "pending") head.append(pill("Pending", "unknown"));
  const since = list === "pending" ? row.at : row.fired ?? row.at;
  head.append(timed("since", since, list === "pending" ? "true for " : "for "), time(since));
  const parts = [head, cell("p", `alert.${id}.n`, "says")];
  if (row.description) parts.push(make("p", row.description, "note"));
  parts.push(chips(shownLabels(row)));
  if (row.held) parts.push(make("p", "On hold: " + (row.why || "its series has no data now"), "note held"));
  parts.push(list === "pending" ? waits(row, extra) : list === "muted" ? quiet(extra) : told(extra.told || []));
  return parts;
}

function waits(row, extra) {
  const words = row.for ? `Fires once it has been true for ${row.for}.` : "Fires once it has been true long enough.";
  return make("p", extra.muted ? `${words} It would not be sent: ${extra.muted}` : words, "note");
}

function quiet(extra) {
  const p = make("p", "", "note");
  if (!extra.silence) return p.append(make("span", extra.muted)), p;
  p.append("Silenced", extra.by ? " by " : "", make("b", extra.by), " for another ");
  const left = make("b");
  left.dataset.till = extra.until;
  p.append(left, " (until ", time(extra.until), ")", extra.comment ? ": " + extra.comment : "");
  return p;
}

function told(found) {
  const p = make("p", "", "note told");
  if (!found.length) p.append("Not sent to any receiver.");
  else p.append("Receivers: ");
  for (const { receiver, state, text, at } of found) {
    const one = make("span", "", "receiver");
    one.append(make("b", receiver), " ", pill(text, state), state === "watch" ? " next " : " ", time(at));
    p.append(one);
  }
  return p;
}

function figure(id) {
  const row = state.view["alert." + id], box = make("div", "", "figure");
  box.append(cell("b", `alert.${id}.v`, "num"));
  if (row.limit) box.append(make("span", "limit " + row.limit, "note"));
  else if (row.rule) box.append(make("code", row.rule));
  return box;
}

function card(id, list) {
  const row = state.view["alert." + id], el = make("article", "", "card alert");
  el.dataset.id = id;
  el.id = "alert-" + id;
  el.dataset.state = row.s;
  const body = make("div", "", "facts"), side = make("div", "", "aside"), actions = make("p", "", "actions");
  actions.append(chartLink(row));
  if (/^https?:\/\//.test(row.runbook || "")) actions.append(outside(row.runbook));
  actions.append(list === "muted" ? ender(() => (state.view[`alert.${id}.x`] || {}).silence) : silencer(id, row));
  el.append(body, side, actions);
  return el;
}

function outside(address) {
  const link = make("a", "Runbook");
  link.href = address;
  link.rel = "noreferrer noopener";
  link.target = "_blank";
  return link;
}

function silencer(id, row) {
  const button = make("button", "Silence", "plain");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-label", `Silence ${row.name}`);
  button.addEventListener("click", () => silenceForm(button, row));
  return button;
}

function ender(id) {
  const button = make("button", "End silence", "plain");
  button.type = "button";
  button.addEventListener("click", () => id() && endSilence(id(), button));
  return button;
}

function redraw(el, list) {
  const id = el.dataset.id, button = el.querySelector(".actions button");
  el.querySelector(".facts").replaceChildren(...facts(id, list));
  el.querySelector(".aside").replaceChildren(figure(id));
  // An inhibition by another alert cannot be ended here.
  if (list === "muted") button.hidden = !(state.view[`alert.${id}.x`] || {}).silence;
}

// Keeps existing elements: a replaced element loses the focus, and a form its input.
function arrange(box, ids, build) {
  const have = new Map(Array.from(box.children).map((el) => [el.dataset.id, el]));
  let at = box.firstElementChild;
  for (const id of ids) {
    const el = have.get(id) || build(id);
    have.delete(id);
    if (el === at) at = at.nextElementSibling;
    else box.insertBefore(el, at);
  }
  for (const el of have.values()) el.remove();
}

function lists(cells) {
  for (const box of all("[data-alerts]")) {
    const list = box.dataset.alerts, ids = state.view["alerts." + list] || [];
    const fresh = new Set(ids.filter((id) => !document.querySelector(`[data-alerts=${list}] > [data-id="${id}"]`)));
    arrange(box, ids, (id) => card(id, list));
    box.parentNode.hidden = !ids.length && list !== "firing";
    for (const el of box.children) {
      const id = el.dataset.id;
      if (fresh.has(id) || `alert.${id}` in cells || `alert.${id}.x` in cells || bits.all !== state.boot.all) redraw(el, list), renew(cells, id);
    }
  }
  bits.all = state.boot.all;
}

// New elements also need the cells that did not change.
function renew(cells, id) {
  for (const key of [`alert.${id}.v`, `alert.${id}.n`]) if (key in state.view) cells[key] = state.view[key];
  reindex();
}

function briefRow(id) {
  const row = state.view["alert." + id], done = row.state === "resolved", li = make("li"), link = make("a"), words = make("span", "", "words");
  li.dataset.id = id;
  const colour = done ? "ok" : row.s, word = make("span", row.state, "state");
  word.dataset.state = row.state === "pending" ? "unknown" : colour;
  const head = make("span", "", "row");
  const count = (state.view["brief_alerts.n"] || {})[id];
  head.append(make("b", row.name), ...(count ? [make("span", `×${count}`, "times")] : []), word);
  // A resolved alert's sentence is outdated.
  const says = done ? make("span", row.lasted ? "lasted " + row.lasted : "", "note") : cell("span", `alert.${id}.n`, "note");
  words.append(head, says, ...(row.description && !done && id === state.view["brief_alerts.al"][0] ? [make("span", row.description, "note next")] : []), time(done ? row.ended : row.fired ?? row.at));
  link.append(mark(colour), words);
  link.dataset.in = "alerts";
  link.href = path("alerts") + query() + (done ? "#history" : "#alert-" + id);
  li.append(link);
  return li;
}

function briefs(cells) {
  const box = document.querySelector("[data-rows=brief-alerts]");
  if (!box || !state.view["brief_alerts.al"] || !("brief_alerts.al" in cells || "brief_alerts.n" in cells || state.view["brief_alerts.al"].some((id) => `alert.${id}` in cells))) return;
  box.replaceChildren(...state.view["brief_alerts.al"].map(briefRow));
  for (const id of state.view["brief_alerts.al"]) renew(cells, id);
  watched(box.parentNode);
}

// The card is as high as the charts next to it: rows that do not fit are counted instead of cut.
let sizes = null;
function watched(card) {
  requestAnimationFrame(fit);
  if (sizes && sizes.card === card) return;
  if (sizes) sizes.disconnect();
  sizes = Object.assign(new ResizeObserver(fit), { card });
  sizes.observe(card);
}

function fit() {
  const card = by("alerts"), link = by("more-alerts"), { hidden: beyond, note } = state.view["brief_alerts.more"] || { hidden: 0, note: "" };
  if (!card || !link) return;
  const rows = all("li", card), words = (n) => [n ? `${n} more` : "", note].filter(Boolean).join(" · ");
  for (const row of rows) row.hidden = false;
  link.textContent = words(beyond);
  let hidden = 0;
  while (card.scrollHeight > card.clientHeight + 1 && hidden < rows.length - 1) {
    hidden++;
    rows[rows.length - hidden].hidden = true;
    link.textContent = words(beyond + hidden);
  }
}

function history(cells) {
  const box = document.querySelector("[data-rows=history]"), ids = state.view["alerts.history"];
  if (!box || !ids || !("alerts.history" in cells || ids.some((id) => `alert.${id}` in cells))) return;
  by("history").hidden = !ids.length;
  box.replaceChildren(...ids.map((id) => {
    const row = state.view["alert." + id], tr = make("tr"), name = make("th");
    name.scope = "row";
    name.append(mark(row.s), make("span", row.name), make("span", state.boot.all ? row.run : differs(row), "note"));
    tr.append(name, cellOf("Began", time(row.fired ?? row.at)), cellOf("Lasted", row.lasted || "–"),
      cellOf("Last value", state.view[`alert.${id}.v`] || "–"), cellOf("Reason", row.why || "no longer true"),
      cellOf("", chartLink(row)));
    return tr;
  }));
}

// The labels that distinguish alerts of one rule.
const COMMON = ["alertname", "run", "class", "severity"];
const differs = (row) => Object.entries(row.labels).filter(([name]) => !COMMON.includes(name)).map(([name, value]) => `${name}=${value}`).join(" ");

function table(cells, prefix, where, draw) {
  const box = document.querySelector(`[data-rows=${where}]`);
  if (!box || !touched(cells, prefix)) return;
  const found = list(prefix);
  box.replaceChildren(...found.map(draw));
}

function rule({ name, severity, colour, class: kind, expression, now, state, summary, builtin }) {
  const tr = make("tr"), th = make("th"), code = make("code", expression);
  th.scope = "row";
  th.append(make("span", name));
  if (summary) th.title = summary;
  const silent = state === "unknown" && now.length > 24;
  tr.append(th, cellOf("Class", make("span", builtin ? kind : kind + " · yours", "note")), cellOf("Severity", pill(severity, colour)), cellOf("Fires when", code),
    cellOf("Now", silent ? make("span", now, "note") : pill(now, state)));
  return tr;
}

function delivery({ receiver, kind, state: colour, text, at, run, alerts, answer }) {
  const li = make("li"), head = make("span", "", "row"), what = make("span", alerts.join(", "), "note");
  head.append(make("b", receiver), make("span", kind === receiver ? "" : kind, "kind"), pill(text, colour), time(at));
  li.append(head, what);
  if (state.boot.all) what.append(" · " + run);
  if (answer) li.append(make("span", answer, colour === "critical" || colour === "watch" ? "error" : "note"));
  return li;
}

function quieted({ id, state, matchers, starts_at: starts, ends_at: ends, created_by: who, comment }) {
  const li = make("li"), head = make("span", "", "row"), list = make("ul", "", "chips");
  list.append(...matchers.map((text) => make("li", text)));
  head.append(timed("till", state === "pending" ? starts : ends, state === "pending" ? "begins in " : "ends in "), ender(() => id));
  li.append(list, head, make("span", [who, comment].filter(Boolean).join(": "), "note"));
  return li;
}

drawers.push((cells) => {
  lists(cells);
  briefs(cells);
  history(cells);
  table(cells, "rules.", "rules", rule);
  table(cells, "deliveries.", "deliveries", delivery);
  table(cells, "silences.", "silences", quieted);
  const how = document.querySelector(".how");
  if (how && "deliveries.how" in cells) how.hidden = !cells["deliveries.how"];
  const toggle = by("all-runs");
  if (toggle) toggle.setAttribute("aria-pressed", String(Boolean(state.boot.all)));
});

document.addEventListener("click", (event) => {
  if (!event.target.closest("#all-runs")) return;
  go(location.pathname + query({ all: state.boot.all ? null : "1" }));
});
