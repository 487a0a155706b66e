// Push: a socket on which the server says that the run shown has something new (`dashboard/state/push_notifications.py`). A tab then looks at
// once and, as long as the socket is up, now and then by the clock; when it is down, at every tick as ever.
(function (RS) {
  "use strict";
  // A server that is away comes back within seconds; one behind a proxy without sockets never does.
  const FIRST = 2000, LAST = 120000;
  let socket = null, run = "", wait = FIRST, next = 0;

  RS.pushed = () => Boolean(socket && socket.readyState === WebSocket.OPEN);

  function open(name) {
    const base = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${RS.by("app").dataset.base}`;
    const mine = (socket = new WebSocket(`${base}news?${new URLSearchParams({ run: name })}`));
    run = name;
    mine.addEventListener("open", () => {
      wait = FIRST;
      // What came between the last look and now.
      RS.news();
    });
    mine.addEventListener("message", () => mine === socket && RS.news());
    mine.addEventListener("close", () => mine === socket && lost());
  }

  function lost() {
    socket = null;
    // It may be the server that went: that shows by its silence, which begins now.
    RS.news();
    next = performance.now() + wait;
    wait = Math.min(LAST, 2 * wait);
  }

  function close() {
    const mine = socket;
    socket = null;
    if (mine) mine.close();
  }

  // For a page that gets points of a run that lives and is looked at; `wanted`: is it looked at?
  RS.listen = function (wanted) {
    const b = RS.boot, name = wanted && b && !b.error && b.cursor && !b.over ? b.run : "";
    if (socket && run !== name) close();
    if (name && !socket && document.documentElement.dataset.push === "on" && performance.now() >= next) open(name);
  };
})(window.RS);
