// The keyboard, on every page (`dashboard/shell/shortcuts.py` has the list).
import { all, by } from "./dom.mjs";
import { address, go } from "./nav.mjs";
import { state } from "./state.mjs";
import { filling, full } from "../widgets/chart_menu.mjs";

const PAGES = { o: "overview", s: "sandboxes", g: "generator", r: "rollouts", t: "trainer", a: "alerts", u: "runs", e: "explore", x: "sources", p: "sources?tab=setup", w: "what-if", h: "help" };
const WAIT = 1500;
let going = 0;

const typing = (el) => el && (el.isContentEditable || /^(input|textarea|select)$/i.test(el.tagName));
const click = (el) => el && (el.click(), true);

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
  const [to, changes] = PAGES[key].split("?");
  return go(address(to, changes)), true;
}

const DOES = { "?": () => page("h"), g: () => ((going = performance.now()), true), l: () => click(by("live")), t: () => click(by("theme")), f: fill,
  Escape: () => filling() && (full(null), true) };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !state.boot) return;
  if (typing(event.target) || document.querySelector("dialog:modal")) return;
  const key = event.key, on = going && performance.now() - going < WAIT;
  const done = on && PAGES[key] ? page(key) : /^[1-6]$/.test(key) ? click(all("#ranges a")[Number(key) - 1]) : DOES[key] && DOES[key]();
  if (!on || key !== "g") going = key === "g" ? going : 0;
  if (done) event.preventDefault();
});
