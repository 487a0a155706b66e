// Deletes a run: a button in its row of the Runs page, and a dialog that asks for confirmation.
(function (RS) {
  "use strict";
  const { make, by } = RS;
  const COLLECTED = new Set(["live", "catching_up", "stale"]), LOST = "The server cannot be reached.";

  async function remove(name) {
    const query = new URLSearchParams({ confirm: name });
    const answer = await fetch(`${by("app").dataset.base}api/v1/runs/${encodeURIComponent(name)}?${query}`, { method: "DELETE" });
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.detail || `The server answered ${answer.status}.`);
  }

  function confirm(name) {
    const button = make("button", `Delete ${name}`, "strong"), wrong = make("p", "", "error");
    wrong.setAttribute("role", "alert");
    const text = make("p", `This deletes the run ${name} with all its data permanently. There is no undo; a backup keeps a copy.`);
    const sheet = RS.dialog("Delete a run", text, wrong, button);
    button.type = "button";
    button.addEventListener("click", async () => {
      button.disabled = true;
      wrong.textContent = "";
      try {
        await remove(name);
        sheet.close();
        RS.unchoose(name);
        RS.say("rn-said", `Run ${name} is deleted.`);
        RS.poke();
      } catch (error) {
        wrong.textContent = "Not deleted: " + (error instanceof TypeError ? LOST : error.message);
        button.disabled = false;
        button.focus();
      }
    });
  }

  // The button of a row. A run that is collected cannot be deleted; the title states why.
  RS.deleteButton = function ({ name, state }) {
    const button = make("button", "Delete", "plain delete");
    button.type = "button";
    button.setAttribute("aria-label", `Delete ${name}`);
    button.disabled = COLLECTED.has(state[0]);
    if (button.disabled) button.title = "The run is being collected. Remove it from the configuration or stop its pushes first.";
    button.addEventListener("click", () => confirm(name));
    return button;
  };
})(window.RS);
