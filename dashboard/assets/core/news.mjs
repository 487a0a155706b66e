// Push: the server notifies over a socket that the shown run has new data (`dashboard/state/push_notifications.py`).
// The tab then polls at once. While the socket is open it polls rarely by the clock, otherwise at every tick.
import { by } from "./dom.mjs";
import { news } from "./live.mjs";
import { state } from "./state.mjs";

// A server that is away comes back within seconds; one behind a proxy without sockets never does.
const FIRST = 2000, LAST = 120000;
let socket = null, run = "", wait = FIRST, next = 0;

export const pushed = () => Boolean(socket && socket.readyState === WebSocket.OPEN);

function open(name) {
  const base = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${by("app").dataset.base}`;
  const mine = (socket = new WebSocket(`${base}news?${new URLSearchParams({ run: name })}`));
  run = name;
  mine.addEventListener("open", () => {
    wait = FIRST;
    // Fetches what arrived before the socket was open.
    news();
  });
  mine.addEventListener("message", () => mine === socket && news());
  mine.addEventListener("close", () => mine === socket && lost());
}

function lost() {
  socket = null;
  // If the server is gone, the poll fails and the loss shows.
  news();
  next = performance.now() + wait;
  wait = Math.min(LAST, 2 * wait);
}

function close() {
  const mine = socket;
  socket = null;
  if (mine) mine.close();
}

// Opens a socket for a page with live points of a run; `wanted`: the page is visible and not paused.
export function listen(wanted) {
  const b = state.boot, name = wanted && b && !b.error && b.cursor && !b.over ? b.run : "";
  if (socket && run !== name) close();
  if (name && !socket && document.documentElement.dataset.push === "on" && performance.now() >= next) open(name);
}
