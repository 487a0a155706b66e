// What every chart can do: a menu of its tools, full screen, a table, a link; its source under the title; arrow keys.
import { show } from "../core/address.mjs";
import { all, by, make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { now } from "../core/live.mjs";
import { address as page, go, path, query } from "../core/nav.mjs";
import { state } from "../core/state.mjs";
import { draw, graphOf, time } from "./chart.mjs";
import { linesOf, linkOf, rowsOf, saveCsv, savePng, summarise, titleOf, valueOf } from "./chart_data.mjs";
import { cross, leave } from "./cursor.mjs";
import { lineOf } from "./legend.mjs";
import { removePanel } from "./own_panels.mjs";
import { nearest } from "./series.mjs";
import { byStep, toMs, toX } from "./step_axis.mjs";

const MOST = 200, LEAP = 10, AGAIN = 1000;
let menu = null, filled = null, hidden = [], before = null;

// ---- dialogs

// A modal dialog; it is removed when it is closed.
export function dialog(title, ...children) {
  const el = make("dialog", "", "sheet"), head = make("div", "", "row"), shut = make("button", "Close", "shut"), name = make("h2", title);
  name.id = "sheet-title";
  el.setAttribute("aria-labelledby", "sheet-title");
  shut.type = "button";
  shut.addEventListener("click", () => el.close());
  el.addEventListener("click", (event) => event.target === el && el.close());
  el.addEventListener("close", () => el.remove());
  head.append(name, shut);
  el.append(head, ...children);
  document.body.append(el);
  el.showModal();
  return el;
}

function table(el) {
  const lines = linesOf(el), rows = rowsOf(lines), nth = Math.ceil(rows.length / MOST), steps = byStep();
  // Counted from the newest, which is what is looked for first.
  const shown = rows.filter((_, i) => (rows.length - 1 - i) % nth === 0).reverse(), wide = state.boot.end - state.boot.start > 86400;
  const body = make("table"), head = make("thead"), tr = make("tr"), rest = make("tbody"), caption = make("caption");
  caption.textContent = nth > 1 ? `Every ${ordinal(nth)} of ${rows.length.toLocaleString("en")} points, newest first; the CSV has all` : `${rows.length} points, newest first`;
  for (const name of ["Time", ...(steps ? ["Step"] : []), ...lines.map((line) => line.label)]) tr.append(headed(make("th", name), "col"));
  for (const [ms, ...values] of shown) {
    const row = make("tr");
    row.append(headed(make("th", format.clock(ms, wide)), "row"), ...(steps ? [make("td", String(Math.ceil(toX(ms) - 1e-6)))] : []));
    for (let i = 0; i < lines.length; i++) row.append(make("td", values[i] === undefined ? "" : valueOf(el, values[i])));
    rest.append(row);
  }
  head.append(tr);
  body.append(caption, head, rest);
  return body;
}

const ordinal = (n) => n + (n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th");
const headed = (th, scope) => ((th.scope = scope), th);
export function showTable(el) {
  const frame = make("div", "", "scroll"), save = make("button", "CSV", "more");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Table");
  frame.append(table(el));
  save.type = "button";
  save.addEventListener("click", () => saveCsv(el));
  return dialog(titleOf(el), make("p", el.querySelector(".unit").textContent, "note"), frame, save);
}

function copied(words, said) {
  toast(said ? "Link copied" : "");
  if (said) return;
  // Without https a page may not write to the clipboard.
  const field = make("input", "", "link"), sheet = dialog("Copy this link", field);
  field.value = words;
  field.readOnly = true;
  field.setAttribute("aria-label", "Link");
  field.focus();
  field.select();
  return sheet;
}

export function copyLink(el) {
  const words = linkOf(el), write = navigator.clipboard ? navigator.clipboard.writeText(words) : Promise.reject();
  return write.then(() => copied(words, true), () => copied(words, false));
}

// A short message, also announced to screen readers.
export function toast(words) {
  let el = by("toast");
  if (!el) {
    el = make("p", "", "toast");
    el.id = "toast";
    el.setAttribute("role", "status");
    document.body.append(el);
  }
  el.textContent = words;
  clearTimeout(el.later);
  el.later = setTimeout(() => (el.textContent = ""), 2500);
}

// ---- full screen

export const filling = () => (filled ? filled.dataset.panel : "");
const address = (key) => history.replaceState(history.state, "", location.pathname + query({ panel: key || null }) + location.hash);

// Everything else is out of reach while a chart fills the screen.
function apart(el) {
  for (let at = el; at !== document.body; at = at.parentElement)
    for (const other of at.parentElement.children) if (other !== at && !other.inert && other.id !== "toast") (other.inert = true), hidden.push(other);
}

function fill(el) {
  before = document.activeElement;
  filled = el;
  el.dataset.full = "1";
  el.setAttribute("role", "dialog");
  el.setAttribute("aria-modal", "true");
  el.setAttribute("aria-label", titleOf(el) + ", full screen");
  document.documentElement.classList.add("filled");
  apart(el);
  const shut = make("button", "Close", "shut");
  shut.type = "button";
  shut.addEventListener("click", () => full(null));
  el.querySelector(".row").append(shut);
  el.querySelector(".plot").focus({ preventScroll: true });
}

function shrink(el) {
  filled = null;
  delete el.dataset.full;
  for (const name of ["role", "aria-modal", "aria-label"]) el.removeAttribute(name);
  document.documentElement.classList.remove("filled");
  for (const other of hidden) other.inert = false;
  hidden = [];
  el.querySelector(".row .shut").remove();
  if (before && before.isConnected) before.focus({ preventScroll: true });
}

export function full(el, quiet) {
  const was = filled;
  if (was === el) return;
  if (was) shrink(was);
  if (el) fill(el);
  if (!quiet) address(el && el.dataset.panel);
}

// The address names the full-screen chart, also after "back" and for a shared link.
function follow() {
  const key = new URLSearchParams(location.search).get("panel") || "";
  if (!state.boot || state.boot.error || key === filling()) return;
  full(all(`[data-place="${state.boot.key}"] [data-panel]`).find((el) => el.dataset.panel === key) || null, true);
}
export function settled() {
  follow();
  summarise();
  // A chart that existed before is drawn again only now.
  setTimeout(summarise, AGAIN);
  lacking();
}
window.addEventListener("popstate", follow);

// ---- the menu

const flip = (changes) => () => show(changes);
function items(el) {
  const asked = new URLSearchParams(location.search), over = asked.get("over"), drawn = linesOf(el).length > 0;
  const own = drawn ? [["Data table", () => showTable(el)], ["Save CSV", () => saveCsv(el)], ["Save PNG", () => savePng(el)]] : [];
  const again = filling() ? ["Exit full screen", () => full(null), "Esc"] : ["Full screen", () => full(el), "f"];
  const axis = asked.get("axis") === "step" ? ["Show by time", flip({ axis: null })] : ["Show by step", flip({ axis: "step" })];
  const behind = [["1h", "Compare with an hour ago"], ["1d", "Compare with a day ago"]].filter(([key]) => key !== over).map(([key, words]) => [words, flip({ over: key, align: null })]);
  const none = over ? [["Stop comparing", flip({ over: null, align: null })]] : [];
  const signals = [...new Set(all(".legend .item[data-signal]", el).map((item) => item.dataset.signal))].join(",");
  const spec = el.closest(".own-charts")?.spec, asks = spec ? { [spec.kind]: spec.name, ...(spec.split && { split: spec.split }), ...(spec.log && { log: "1" }) } : { signal: signals };
  const explore = state.boot.key === "explore" ? [] : [["Open in Explore", () => go(page("explore", new URLSearchParams(asks)))]];
  if (spec && spec.own) explore.push(["Remove from Overview", () => removePanel(el.parentElement.dataset.of)]);
  return [again, ...own, ["Copy link", () => copyLink(el)], ...explore, ["All charts"], axis, ...behind, ["Compare with another run …", () => choose()], ...none];
}

function choose() {
  const list = make("ul", "", "choices"), current = state.boot.run;
  for (const link of all("#runs a")) {
    const name = link.querySelector(".name").textContent, li = make("li"), words = make("b", name);
    if (name === current) continue;
    li.append(words, pick("align starts", { over: name, align: null }), pick("align ends", { over: name, align: "now" }));
    list.append(li);
  }
  const sheet = dialog("Compare with another run", list.children.length ? list : make("p", "There is no other run.", "note"));
  list.addEventListener("click", (event) => event.target.closest("button") && sheet.close());
}

function pick(words, changes) {
  const button = make("button", words, "more");
  button.type = "button";
  button.addEventListener("click", flip(changes));
  return button;
}

function entry([words, run, key]) {
  if (!run) return Object.assign(make("p", words, "group"), { role: "presentation" });
  const button = make("button", words);
  button.type = "button";
  button.tabIndex = -1;
  button.setAttribute("role", "menuitem");
  if (key) button.append(make("kbd", key));
  button.addEventListener("click", () => (shut(true), run()));
  return button;
}

function shut(back) {
  if (!menu) return;
  const { button } = menu;
  menu.remove();
  menu = null;
  button.setAttribute("aria-expanded", "false");
  if (back) button.focus({ preventScroll: true });
}

function open(el, button) {
  menu = Object.assign(make("div", "", "menu"), { button });
  menu.setAttribute("role", "menu");
  menu.setAttribute("aria-label", button.getAttribute("aria-label"));
  menu.append(...items(el).map(entry));
  menu.addEventListener("keydown", moved);
  el.append(menu);
  button.setAttribute("aria-expanded", "true");
  menu.querySelector("button").focus({ preventScroll: true });
}

function moved(event) {
  const buttons = all("button", menu), at = buttons.indexOf(document.activeElement), n = buttons.length;
  const to = { ArrowDown: (at + 1) % n, ArrowUp: (at + n - 1) % n, Home: 0, End: n - 1 }[event.key];
  if (event.key === "Tab" || event.key === "Escape") shut(true);
  if (event.key === "Escape" || to !== undefined) event.preventDefault(), event.stopPropagation();
  if (to !== undefined) buttons[to].focus();
}

document.addEventListener("pointerdown", (event) => menu && !menu.contains(event.target) && event.target !== menu.button && shut(false));

// ---- source and age, under the title

const newest = (line) => line.x.findLast((_, i) => line.y[i] !== null);
function source(el) {
  const lines = linesOf(el), tip = el.querySelector(".tip"), rows = all(".legend .item[data-signal]", el).map((item) => {
    const key = item.querySelector("[data-slot]").dataset.slot, { label, source: from } = lineOf(key) || { label: "" }, line = lines.find((one) => one.slot === key && !one.behind);
    const at = line && newest(line), words = [item.dataset.signal, from && `from ${from}`, at && format.age(now() - (toMs(at) - state.tz) / 1000)];
    const li = make("li"), help = make("a", "what it means");
    help.href = path("help") === by("app").dataset.base ? `${by("app").dataset.base}help#${item.dataset.signal}` : `${path("help")}#${item.dataset.signal}`;
    li.append(make("b", label), make("span", words.filter(Boolean).join(" · ") || "no value now"), help);
    return li;
  });
  const list = make("ul");
  list.append(...rows);
  tip.replaceChildren(list);
}

export function legends(el) {
  for (const old of all(".legend .more-lines", el)) old.remove();
  const key = el.dataset.panel, rules = (state.boot.rules || {})[key] || [], where = el.querySelector(".legend"), [words, slots] = state.boot.behind || ["", []];
  for (const [level, limit, near] of rules) {
    const item = make("span", limit + (near ? "" : " ↑"), `limit rule ${level} more-lines`);
    if (!near) item.title = "Outside the chart";
    where.append(item);
  }
  // Parts of a whole would have to be stacked again: they have no comparison.
  if (slots.length && ((graphOf(el) || {}).data || []).some((trace) => trace.stackgroup)) {
    const item = make("span", "stacked charts are not compared", "item more-lines");
    item.title = `Not compared with ${words}`;
    where.append(item);
  }
  const behind = slots.filter((slot) => slot.split(".")[0] === key);
  behind.forEach((slot, i) => {
    const item = make("span", "", "item more-lines"), value = make("b");
    value.dataset.slot = "over:" + slot;
    item.append(make("i", "", "swatch behind" + (i ? " dotted" : "")), make("span", behind.length > 1 ? `${lineOf(slot).label} ${words}` : words), value);
    where.append(item);
  });
}

// Reports requested comparisons that cannot be shown.
function lacking() {
  const panels = all(`[data-place="${state.boot.key}"] [data-panel]`), [words, slots] = state.boot.behind || ["", []];
  panels.forEach(legends);
  if (panels.length && words && !slots.length) toast(`${words}: no data`);
  if (panels.length && state.boot.stepped && !byStep()) toast("No steps in this range: showing time instead");
}

// ---- keys on a chart

function walk(event, el) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key] * (event.shiftKey ? LEAP : 1), ends = { Home: 0, End: -1 }[event.key];
  if (Number.isNaN(step) && ends === undefined) return event.key === "Escape" && state.hovering ? (leave(), event.stopPropagation()) : undefined;
  const line = linesOf(el)[0];
  if (!line || !line.x.length) return;
  event.preventDefault();
  const last = line.x.length - 1, from = el.at === undefined ? last + (step < 0 ? 1 : 0) : nearest(line.x, toX(el.at));
  const to = ends === undefined ? Math.max(0, Math.min(last, from + step)) : ends ? last : 0;
  el.at = toMs(line.x[to]);
  const gd = graphOf(el);
  // Draws the chart before it scrolls into view, because the keyboard focus arrives first.
  draw(gd);
  if (!gd._fullLayout) return;
  const { _offset, _length, range } = gd._fullLayout.xaxis, [start, end] = range.map(time), box = gd.getBoundingClientRect();
  const x = box.left + _offset + (_length * (toX(el.at) - start)) / (end - start);
  by("said-" + el.dataset.panel).textContent = cross(el.at, el, x, box.top);
}

// ---- what a panel gets when its chart is first there

export function dress(el) {
  if (el.dressed) return;
  el.dressed = true;
  const key = el.dataset.panel, title = titleOf(el), row = el.querySelector(".row"), plot = el.querySelector(".plot"), h2 = row.querySelector("h2");
  const button = Object.assign(make("button", "⋯", "tools"), { type: "button" }), tip = make("div", "", "tip"), sum = make("p", "", "sr"), said = make("p", "", "sr");
  button.setAttribute("aria-label", `${title}: tools`);
  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => (menu ? shut(true) : open(el, button)));
  sum.id = "sum-" + key;
  said.id = "said-" + key;
  said.setAttribute("role", "status");
  Object.entries({ role: "img", tabindex: "0", "aria-label": `${title}, chart`, "aria-describedby": sum.id }).forEach(([name, value]) => plot.setAttribute(name, value));
  plot.addEventListener("keydown", (event) => walk(event, el));
  plot.addEventListener("blur", () => ((el.at = undefined), leave()));
  h2.tabIndex = 0;
  for (const name of ["pointerenter", "focus"]) h2.addEventListener(name, () => (delete tip.dataset.off, source(el)));
  h2.addEventListener("focus", () => (tip.dataset.on = "1"));
  // Stays open while the focus is inside, because a hidden element cannot take the focus.
  row.addEventListener("focusout", () => setTimeout(() => tip.contains(document.activeElement) || document.activeElement === h2 || delete tip.dataset.on));
  row.addEventListener("keydown", (event) => event.key === "Escape" && (tip.dataset.off = "1"));
  h2.after(tip);
  row.append(button);
  el.append(sum, said);
}
