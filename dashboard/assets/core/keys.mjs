// The keyboard, on every page (`dashboard/shell/shortcuts.py` has the list).
import { all, by, make } from "./dom.mjs";
import { state } from "./state.mjs";
import { dialog, filling, full } from "../widgets/chart_menu.mjs";

const PAGES = { o: "overview", r: "rollouts", g: "generator", t: "trainer", s: "sandboxes", a: "alerts", u: "runs", x: "targets", w: "what-if", p: "preflight", h: "help" };
const WAIT = 1500;
let going = 0;

const typing = (el) => el && (el.isContentEditable || /^(input|textarea|select)$/i.test(el.tagName));
const click = (el) => el && (el.click(), true);

function help() {
  const list = make("dl", "", "shortcuts");
  for (const [key, words] of JSON.parse(by("app").dataset.shortcuts || "[]")) {
    const name = make("dt");
    name.append(...key.split(" ").map((part) => make(part === ".." ? "span" : "kbd", part)));
    list.append(name, make("dd", words));
  }
  dialog("Keyboard shortcuts", list);
}

// The chart that has the focus, or that the cursor is on.
function panel() {
  const here = document.activeElement && document.activeElement.closest("[data-panel]");
  return here || document.querySelector("[data-panel]:hover");
}

function fill() {
  const el = filling() ? null : panel();
  if (el || filling()) return full(el), true;
}

function page(key) {
  going = 0;
  return click(document.querySelector(`[data-nav="${PAGES[key]}"]`));
}

const DOES = { "?": () => (help(), true), g: () => ((going = performance.now()), true), l: () => click(by("live")), t: () => click(by("theme")), f: fill,
  Escape: () => filling() && (full(null), true) };

document.addEventListener("click", (event) => event.target.closest("#keys") && help());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !state.boot) return;
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  const key = event.key, on = going && performance.now() - going < WAIT;
  const done = on && PAGES[key] ? page(key) : /^[1-6]$/.test(key) ? click(all("#ranges a")[Number(key) - 1]) : DOES[key] && DOES[key]();
  if (!on || key !== "g") going = key === "g" ? going : 0;
  if (done) event.preventDefault();
});
