// The zoom in the address: as absolute times, so that a link opens the same view, and the browser's "back" undoes it.
(function (RS) {
  "use strict";
  const WAIT = 400;
  let later = null;

  const held = () => Boolean(history.state && history.state.zoom);
  // Epoch seconds; of a short time to the tenth.
  RS.moments = function () {
    const [start, end] = RS.range(), places = end - start < 120000 ? 1 : 0;
    return { start: ((start - RS.tz) / 1000).toFixed(places), end: ((end - RS.tz) / 1000).toFixed(places) };
  };

  // One entry of the history per zoom: what is narrowed further replaces it.
  RS.remember = function () {
    clearTimeout(later);
    later = setTimeout(() => {
      if (!RS.zoom || !RS.boot || RS.boot.error) return;
      const href = location.pathname + RS.query(RS.moments()) + location.hash;
      if (held()) history.replaceState(history.state, "", href);
      else history.pushState({ zoom: true }, "", href);
      RS.navigated();
    }, WAIT);
  };

  // The address as the server was asked by it: charts that are zoomed into still go on.
  RS.unzoomed = function (asked) {
    if (!RS.zoom) return location.search;
    const query = new URLSearchParams(location.search), before = new URLSearchParams(asked);
    for (const name of ["start", "end"])
      if (before.has(name)) query.set(name, before.get(name));
      else query.delete(name);
    const text = query.toString();
    return text ? "?" + text : "";
  };

  RS.reset = function () {
    const base = location.pathname + RS.unzoomed(RS.asked()) + location.hash, pushed = held();
    clearTimeout(later);
    RS.unzoom();
    // Where the entry before is all that differs, it is gone back to: "back" then does not lead into the zoom again.
    if (pushed && !RS.filling()) history.back();
    else if (pushed) history.replaceState({}, "", base);
    RS.navigated();
  };

  window.addEventListener("popstate", () => {
    clearTimeout(later);
    if (RS.zoom && !held()) RS.unzoom();
  });

  // How charts are shown, with a load: a change of the address that Dash hears of.
  RS.show = function (changes) {
    history.pushState({}, "", location.pathname + RS.query(changes) + location.hash);
    window.dispatchEvent(new PopStateEvent("popstate"));
  };
})(window.RS);
