// Searches all sandboxes of the run by ID, name or trace through the API.
(function (RS) {
  "use strict";
  const { make, by } = RS;
  const WAIT = 250, MOST = 20;
  let timer = null, asked = 0;

  // Dash's own field would send every key to the server.
  function field() {
    const label = make("label"), input = make("input");
    Object.assign(input, { type: "search", placeholder: "Find by id, name or trace", maxLength: 200, autocomplete: "off", spellcheck: false });
    label.append(make("span", "Find a sandbox by id, name or trace", "sr"), input);
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => look(input.value.trim()), input.value.trim() ? WAIT : 0);
    });
    return label;
  }

  const body = () => document.querySelector("[data-rows=box-failures]");

  function show(rows, words, title) {
    const where = body();
    where.replaceChildren(...rows);
    where.closest("table").hidden = !rows.length;
    by("box-said").textContent = words;
    by("box-found").textContent = title;
    RS.ages();
  }

  function reset() {
    asked++;
    delete body().dataset.found;
    show(RS.newestFailures(), "", "Failures, newest first");
    by("box-failed").dataset.found = "";
  }

  async function look(text) {
    if (!text) return reset();
    const mine = ++asked, where = body(), run = RS.boot.run;
    where.dataset.found = by("box-failed").dataset.found = "1";
    try {
      const query = new URLSearchParams({ find: text, limit: MOST });
      const answer = await fetch(`${by("app").dataset.base}api/v1/runs/${encodeURIComponent(run)}/sandboxes?${query}`);
      if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
      const { sandboxes } = await answer.json();
      // A slower answer to an earlier text, or to another run's, must not replace a newer one.
      if (mine !== asked || RS.boot.run !== run) return;
      const rows = sandboxes.map((box) => RS.failure([box.id, box.name, box.state.replace("_", " "), box.cause, box.detail, box.ended_at ?? box.seen_at, box.provider]));
      const more = rows.length === MOST ? `The newest ${MOST} with` : `${rows.length || "No"} sandbox${rows.length === 1 ? "" : "es"} with`;
      show(rows, `${more} “${text}” in id or name.`, "Found");
    } catch (error) {
      if (mine === asked) show([], error instanceof TypeError ? "The server cannot be reached." : error.message, "Found");
    }
  }

  let run = "";
  RS.drawers.push(() => {
    const where = by("box-find");
    if (!where) return;
    if (!where.firstElementChild) where.append(field());
    if (run && run !== RS.boot.run) (where.querySelector("input").value = ""), reset();
    run = RS.boot.run;
  });
})(window.RS);
