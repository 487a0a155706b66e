// Pages: links that keep run and range, the title with the number of firing alerts, and jumps within a page.
import { all, by } from "./dom.mjs";
import { state } from "./state.mjs";

// Menus close by a choice, by a click elsewhere and by Escape.
document.addEventListener("click", (event) => {
  for (const menu of all(".drop[open]")) if (!menu.contains(event.target) || event.target.closest("a")) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = document.querySelector(".drop[open]");
  if (event.key !== "Escape" || !menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

let wanted = location.hash;

// What a page keeps of the address: run and time, and its own names unless it is left. "All runs" belongs to the page
// that offers it.
export function query(changes, leaving) {
  const query = new URLSearchParams(location.search);
  if (leaving) for (const name of ["all", "panel", ...(state.boot.asks || [])]) query.delete(name);
  if (state.boot && state.boot.run && !state.boot.error) query.set("run", state.boot.run);
  for (const [key, value] of Object.entries(changes || {}))
    if (value === null) query.delete(key);
    else query.set(key, value);
  const text = query.toString();
  return text ? "?" + text : "";
}

export const path = (key) => by("app").dataset.base + (key === "overview" ? "" : key);

// Address of a page, which keeps run and time; `changes` as a query.
export const address = (key, changes) => path(key) + query(Object.fromEntries(new URLSearchParams(changes || "")), key !== state.boot.key);

// Without a load of the whole page: `dcc.Location` hears of it as of the browser's own "back".
export function go(href) {
  const to = new URL(href, location.href);
  history.pushState({ inside: true }, "", href);
  wanted = location.hash;
  if (!wanted && to.href !== below && !all(".drawer").some((el) => path(el.dataset.place) === to.pathname)) window.scrollTo(0, 0);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

// ---- drawers: modal over the page that was shown; opened directly they are pages of their own

let under = null, below = "";
// Drawers that a change of the address closed: the event comes later, when the address may be theirs again.
const left = new Set();

// Shows the place of a page and hides the others. Returns whether it lies over another page.
export function present(place) {
  const drawer = Boolean(place) && place.matches(".drawer");
  if (!drawer) under = place, below = location.href;
  for (const el of all("[data-place]")) {
    el.hidden = el !== place && el !== under;
    if (el !== place && el.open) left.add(el), el.close();
  }
  if (drawer && !place.open) under ? place.showModal() : (place.open = true);
  return drawer && Boolean(under);
}

document.addEventListener("click", (event) => {
  const el = event.target.closest(".drawer:modal");
  if (el && (event.target.closest("[data-shut]") || (event.target === el && event.clientX < el.getBoundingClientRect().left))) el.close();
});
// Closed by its button or by Escape, not by a change of the address.
document.addEventListener("close", (event) => {
  const el = /** @type {HTMLElement} */ (event.target);
  if (left.delete(el) || !el.matches(".drawer") || location.pathname !== path(el.dataset.place)) return;
  if (history.state && history.state.inside) history.back();
  else go(below);
}, true);

export function jump() {
  const target = wanted && document.getElementById(wanted.slice(1));
  wanted = "";
  if (target) target.scrollIntoView({ block: "center" });
}

export function navigated() {
  const shown = state.boot.key, count = state.view["header.firing"];
  for (const link of all("[data-nav], [data-goto]")) {
    const key = link.dataset.nav || link.dataset.goto, href = address(key, link.dataset.changes);
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
    if (!link.dataset.nav) continue;
    if (key === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const page = document.querySelector(`[data-place="${shown}"]`), name = page ? page.dataset.title : "";
  const words = [shown === "overview" ? "" : name, state.boot.all ? "all runs" : state.boot.run, "Rollscope"];
  const title = (count ? `(${count}) ` : "") + words.filter(Boolean).join(" · ");
  if (document.title !== title) document.title = title;
}

const plain = (event) => !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);

// Another time is no other question: before Dash hears of the click, which would forget the filters, and how charts are
// shown.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#ranges a");
  if (!link || !plain(event) || !state.boot || state.boot.error) return;
  event.preventDefault();
  event.stopPropagation();
  const to = new URL(link.href).searchParams;
  history.pushState({}, "", location.pathname + query({ range: to.get("range"), start: to.get("start"), end: to.get("end") }));
  window.dispatchEvent(new PopStateEvent("popstate"));
}, true);

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-nav], a[data-goto], a[data-in], .tip a");
  if (!link || !plain(event)) return;
  event.preventDefault();
  // A signal's meaning is of no run, but the page below is.
  go(link.pathname === path("help") ? address("help") + link.hash : link.href);
});
