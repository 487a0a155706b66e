// Pages: links that keep run and range, the title with the number of firing alerts, and jumps within a page.
import { all, by } from "./dom.mjs";
import { state } from "./state.mjs";

document.addEventListener("click", (event) => {
  const menu = by("run-menu");
  if (menu && (!menu.contains(event.target) || event.target.closest("a"))) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = by("run-menu");
  if (event.key !== "Escape" || !menu || !menu.open) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

let wanted = location.hash;

// What a page keeps of the address: run and time, and its own names unless it is left. "All runs" belongs to the page
// that offers it.
export function query(changes, leaving) {
  const query = new URLSearchParams(location.search);
  query.delete("all");
  if (leaving) query.delete("panel");
  if (leaving) for (const name of state.boot.asks || []) query.delete(name);
  if (state.boot && state.boot.run && !state.boot.error) query.set("run", state.boot.run);
  for (const [key, value] of Object.entries(changes || {}))
    if (value === null) query.delete(key);
    else query.set(key, value);
  const text = query.toString();
  return text ? "?" + text : "";
}

export function path(key) {
  const link = document.querySelector(`[data-nav="${key}"]`);
  return link ? link.getAttribute("href").split("?")[0] : by("app").dataset.base;
}

// Without a load of the whole page: `dcc.Location` hears of it as of the browser's own "back".
export function go(href) {
  history.pushState({}, "", href);
  wanted = location.hash;
  if (!wanted) window.scrollTo(0, 0);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

export function jump() {
  const target = wanted && document.getElementById(wanted.slice(1));
  wanted = "";
  if (target) target.scrollIntoView({ block: "center" });
}

// A narrow screen shows a part of the row: the page that is open is in it. Not `scrollIntoView`, which moves the page.
function inView(link) {
  const row = link.parentNode;
  row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
}

export function navigated() {
  const shown = state.boot.key, count = state.view["n.firing"];
  for (const link of all("[data-nav], [data-goto]")) {
    const key = link.dataset.nav || link.dataset.goto;
    const href = path(key) + query(Object.fromEntries(new URLSearchParams(link.dataset.changes || "")), key !== shown);
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
    if (!link.dataset.nav) continue;
    if (key === shown && !link.hasAttribute("aria-current")) inView(link);
    if (key === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const page = document.querySelector(`[data-nav="${shown}"]`), name = page ? page.dataset.title : "";
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
  const link = event.target.closest("a[data-nav], a[data-goto], a[data-in]");
  if (!link || !plain(event)) return;
  event.preventDefault();
  go(link.href);
});
