// The verdict over time (`dashboard/pages/verdict.py`): a ribbon below the same time as the charts, and its changes on them.
(function (RS) {
  "use strict";
  const LEAST = 60, APART = 6;
  const rows = () => RS.view["v.rows"] || [];
  const local = (seconds) => 1000 * seconds + RS.tz;
  let chosen = -1;

  // [[local ms, text], ...] of the changes; the start of the first part is not one.
  const changes = () => rows().slice(1).map(([start, , , word, cause]) => [local(start), label(word, cause)]);
  RS.turns = changes;
  const label = (word, cause) => word + (cause ? ` (${cause})` : "");

  // What the verdict became at this time, within a few pixels.
  RS.verdictAt = function (ms, perPixel) {
    const best = RS.near(changes(), ms, perPixel);
    return best ? "verdict: " + best[1] : "";
  };

  // A part is a link to its own time, at least a minute of it: it opens, can be shared, and is reached by the keyboard.
  function href(start, end) {
    const until = end ?? RS.now(), more = Math.max(0, LEAST - (until - start)) / 2;
    return RS.path(RS.boot.key) + RS.query({ start: (start - more).toFixed(0), end: (until + more).toFixed(0) });
  }

  function part(i) {
    const li = RS.make("li"), link = RS.make("a");
    link.dataset.in = "1";
    link.append(RS.make("span"));
    link.addEventListener("pointerenter", () => describe(i));
    link.addEventListener("focus", () => describe(i));
    link.addEventListener("pointerleave", () => describe(-1));
    link.addEventListener("blur", () => describe(-1));
    li.append(link);
    return li;
  }

  function fill(li, [start, end, colour, word, cause, summary], from, to) {
    const link = li.firstChild, first = Math.max(local(start), from), last = Math.min(local(end ?? RS.now()), to);
    li.hidden = last <= first;
    if (li.hidden) return;
    li.style.left = (100 * (first - from)) / (to - from) + "%";
    li.style.width = (100 * (last - first)) / (to - from) + "%";
    li.dataset.state = colour;
    const target = href(start, end), lasted = RS.format.span((end ?? RS.now()) - start), words = `${label(word, cause)} for ${lasted}: ${summary}`;
    if (link.getAttribute("href") !== target) link.setAttribute("href", target);
    if (link.getAttribute("aria-label") !== words) link.setAttribute("aria-label", words);
    if (link.firstChild.textContent !== label(word, cause)) link.firstChild.textContent = label(word, cause);
  }

  // Shows the whole text and time of the part under the cursor or with the focus.
  function describe(i) {
    chosen = i;
    const note = document.querySelector("[data-t='v.note']"), row = rows()[i];
    if (!note) return;
    if (!row) return void (note.textContent = RS.view["v.note"] ?? "");
    const [start, end, , word, cause, summary] = row, wide = RS.boot.end - RS.boot.start > 86400;
    const to = end === null ? "now" : RS.format.clock(local(end), wide).slice(0, wide ? 11 : 5);
    note.textContent = `${label(word, cause)} · ${RS.format.clock(local(start), wide).slice(0, wide ? 11 : 5)} – ${to} · ${summary}`;
  }

  function paint() {
    const where = document.querySelector("[data-ribbon]");
    if (!RS.boot || RS.boot.error || !RS.view["v.rows"]) return;
    const [from, to] = RS.range(), found = rows();
    if (where) {
      while (where.children.length > found.length) where.lastChild.remove();
      while (where.children.length < found.length) where.append(part(where.children.length));
      found.forEach((row, i) => fill(where.children[i], row, from, to));
      if (chosen >= 0) describe(chosen);
    }
    RS.over("turns", "turned", turns);
  }

  // Dashed, over the whole height: weight updates are thin and many, a change of the verdict is news.
  // Changes closer than `APART` pixels are one line.
  function turns(x, top, bottom, start, end) {
    let drawn = "", last = -Infinity;
    for (const [at] of changes()) {
      const place = Math.round(x(at)) + 0.5;
      if (at < start || at > end || place - last < APART) continue;
      drawn += `M${place} ${top}V${bottom}`;
      last = place;
    }
    return drawn;
  }

  RS.drawers.push((cells) => {
    if (Object.keys(cells).some((key) => key.startsWith("v."))) paint();
  });
  RS.repaint(paint);
})(window.RS);
