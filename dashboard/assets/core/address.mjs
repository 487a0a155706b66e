// The zoom in the address: as absolute times, so that a link opens the same view, and the browser's "back" undoes it.
import { asked } from "./live.mjs";
import { navigated, query } from "./nav.mjs";
import { state } from "./state.mjs";
import { range, unzoom } from "../widgets/chart.mjs";
import { filling } from "../widgets/chart_menu.mjs";

const WAIT = 400;
let later = null;

const held = () => Boolean(history.state && history.state.zoom);
// Epoch seconds; of a short time to the tenth.
export function moments() {
  const [start, end] = range(), places = end - start < 120000 ? 1 : 0;
  return { start: ((start - state.tz) / 1000).toFixed(places), end: ((end - state.tz) / 1000).toFixed(places) };
}

// One history entry per zoom; a further zoom replaces it.
export function remember() {
  clearTimeout(later);
  later = setTimeout(() => {
    if (!state.zoom || !state.boot || state.boot.error) return;
    const href = location.pathname + query(moments()) + location.hash;
    if (held()) history.replaceState(history.state, "", href);
    else history.pushState({ zoom: true }, "", href);
    navigated();
  }, WAIT);
}

// The address without the zoom, as the server knows it: zoomed charts still update.
export function unzoomed(asked) {
  if (!state.zoom) return location.search;
  const query = new URLSearchParams(location.search), before = new URLSearchParams(asked);
  for (const name of ["start", "end"])
    if (before.has(name)) query.set(name, before.get(name));
    else query.delete(name);
  const text = query.toString();
  return text ? "?" + text : "";
}

export function reset() {
  const base = location.pathname + unzoomed(asked()) + location.hash, pushed = held();
  clearTimeout(later);
  unzoom();
  // Goes back if the zoom was pushed, so that "back" does not lead into the zoom again.
  if (pushed && !filling()) history.back();
  else if (pushed) history.replaceState({}, "", base);
  navigated();
}

window.addEventListener("popstate", () => {
  clearTimeout(later);
  if (state.zoom && !held()) unzoom();
});

// Changes how charts are shown: updates the address and triggers a load by Dash.
export function show(changes) {
  history.pushState({}, "", location.pathname + query(changes) + location.hash);
  window.dispatchEvent(new PopStateEvent("popstate"));
}
