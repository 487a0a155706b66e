// The tab Setup of Sources: checks as cards from the cells of `dashboard/pages/sources/setup.py`, the start button, and copying.
import { list, touched } from "../core/cells.mjs";
import { all, by, make, say } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { busy, now, poke } from "../core/live.mjs";
import { drawers, state } from "../core/state.mjs";

const MARKS = { critical: "✕", watch: "▲", ok: "✓", not_applicable: "–" }, LOST = "The server cannot be reached.";

function pill(words, state) {
  const el = make("span", words, "pill");
  el.dataset.state = state;
  return el;
}

function mark(state) {
  const el = make("span", MARKS[state] || "?", "mark");
  el.dataset.state = state;
  el.setAttribute("aria-hidden", "true");
  return el;
}

function items(items, name) {
  const el = make("ul", "", name);
  el.append(...items.map((text) => make("li", text)));
  return el;
}

// ---- checks

function figure(row) {
  const box = make("p", "", "figure");
  if (!row.number) return box;
  const value = make("span");
  // "3 of 3 engines", but "152 sandboxes" against 128.
  const whole = row.limit.startsWith("of "), number = make("b", row.number, "num");
  value.append(number, " ", make("span", whole ? `${row.limit} ${row.unit}` : row.unit, "unit"));
  box.append(value, make("span", whole ? "" : row.limit, "limit-of"));
  return box;
}

function check(row) {
  const el = make("article", "", "card check"), body = make("div", "", "facts"), head = make("div", "", "row");
  el.dataset.state = row.s;
  el.dataset.check = row.name;
  head.append(mark(row.s), make("h3", row.title), pill(row.word, row.s));
  body.append(head, make("p", row.summary, "says"));
  if (row.fix) {
    const fix = make("p", "", "fix");
    fix.append(make("b", "Fix: "), row.fix);
    body.append(fix);
  }
  if (row.details.length) body.append(items(row.details, "details"));
  if (row.ids.length) body.append(items(row.ids, "chips"));
  if (row.more && !row.commands.length) body.append(make("p", row.more, "note"));
  el.append(body, figure(row));
  if (row.commands.length) el.append(commands(row));
  return el;
}

// One block per check, because leftovers are usually removed together.
function commands(row) {
  const box = make("div", "", "commands"), pre = make("pre"), copy = make("button", "Copy", "plain");
  pre.append(make("code", row.commands.join("\n")));
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", `Commands: ${row.title}`);
  copy.type = "button";
  copy.setAttribute("aria-label", `Copy ${row.commands.length} command${row.commands.length === 1 ? "" : "s"}: ${row.title}`);
  copy.addEventListener("click", () => put(row.commands.join("\n") + "\n", copy));
  const head = make("div", "", "row");
  head.append(make("span", "The provider's own command" + (row.commands.length === 1 ? "" : "s") + (row.more ? ", " + row.more : ""), "note"), copy);
  box.append(head, pre);
  return box;
}

// Away from https and this machine browsers have no clipboard, but still copy what is selected.
async function put(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch (refused) {
    done = selected(text);
    button.focus();
  }
  by("pf-said").textContent = done ? "Copied." : "Not copied: the browser blocked it. Select the lines instead.";
  button.textContent = done ? "Copied" : "Copy";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function selected(text) {
  const area = make("textarea");
  area.value = text;
  area.className = "sr";
  document.body.append(area);
  area.select();
  try { return document.execCommand("copy"); } finally { area.remove(); }
}

// ---- plan

function planned({ key, title, value, set }) {
  const li = make("li"), name = make("span", title);
  name.append(make("code", key));
  li.append(name, make("b", value));
  li.dataset.set = set ? "1" : "";
  return li;
}

// ---- the button

let hasty = false;
const early = () => (state.view["preflight.retry"] || 0) - now();

function press() {
  const button = by("pf-run"), wait = by("pf-wait");
  if (!button || !state.boot || state.boot.error) return;
  const left = early(), since = state.view["preflight.since"];
  if (hasty && left <= 0) (hasty = false), (by("pf-said").textContent = "");
  // Not `disabled`, which would remove the focus from the pressed button.
  button.setAttribute("aria-disabled", String(busy() || left > 0));
  button.hidden = state.view["preflight.mode"] === "nc";
  wait.textContent = busy() ? (since ? `for ${format.span(Math.max(0, now() - since))}` : "") : left > 0 ? `again in ${Math.ceil(left)} s` : "";
}

async function begin() {
  const said = by("pf-said");
  if (busy()) return void (said.textContent = "Preflight is already running.");
  // How long stands below the button, where it counts down.
  if (early() > 0) return (hasty = true), void (said.textContent = "Preflight ran a moment ago.");
  hasty = false;
  const run = state.boot.run;
  try {
    const answer = await fetch(`${by("app").dataset.base}api/v1/runs/${encodeURIComponent(run)}/preflight`, { method: "POST" });
    const found = await answer.json().catch(() => ({}));
    said.textContent = answer.ok ? "Started." : "Not started: " + (found.detail || `the server answered ${answer.status}`);
  } catch (error) {
    said.textContent = "Not started: " + LOST;
  }
  poke();
}

document.addEventListener("click", (event) => event.target.closest("#pf-run") && begin());

function groups(cells) {
  for (const box of all("[data-checks]")) {
    const prefix = `preflight.${box.dataset.checks}.`;
    if (!(`preflight.${box.dataset.checks}` in cells) && !touched(cells, prefix)) continue;
    const held = box.contains(document.activeElement), found = list(prefix);
    box.replaceChildren(...found.map(check));
    box.parentNode.hidden = !found.length;
    if (held) say("pf-said", "The checks were updated.");
  }
}

let was = 0;
drawers.push((cells) => {
  if (!("preflight.mode" in state.view) || !by("pf-run")) return void (was = 0);
  groups(cells);
  const plan = document.querySelector("[data-rows=pf-plan]");
  if (touched(cells, "preflight.plan.")) plan.replaceChildren(...list("preflight.plan.").map(planned));
  plan.closest("section").hidden = !plan.childElementCount;
  if (was && !busy()) by("pf-said").textContent = `Done: ${state.view["preflight.head"]}.`;
  was = busy() ? 1 : 0;
  press();
});
setInterval(press, 1000);
