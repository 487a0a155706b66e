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

  // One history entry per zoom; a further zoom replaces it.
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

  // The address without the zoom, as the server knows it: zoomed charts still update.
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
    // Goes back if the zoom was pushed, so that "back" does not lead into the zoom again.
    if (pushed && !RS.filling()) history.back();
    else if (pushed) history.replaceState({}, "", base);
    RS.navigated();
  };

  window.addEventListener("popstate", () => {
    clearTimeout(later);
    if (RS.zoom && !held()) RS.unzoom();
  });

  // Changes how charts are shown: updates the address and triggers a load by Dash.
  RS.show = function (changes) {
    history.pushState({}, "", location.pathname + RS.query(changes) + location.hash);
    window.dispatchEvent(new PopStateEvent("popstate"));
  };
})(window.RS);
