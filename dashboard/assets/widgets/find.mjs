// Searches all sandboxes of the run by ID, name or trace through the API.
import { ages } from "../core/cells.mjs";
import { by, make } from "../core/dom.mjs";
import { drawers, state } from "../core/state.mjs";
import { failure, newestFailures } from "./sandboxes.mjs";

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
  ages();
}

function reset() {
  asked++;
  delete body().dataset.found;
  show(newestFailures(), "", "Failures, newest first");
  by("box-failed").dataset.found = "";
}

async function look(text) {
  if (!text) return reset();
  const mine = ++asked, where = body(), run = state.boot.run;
  where.dataset.found = by("box-failed").dataset.found = "1";
  try {
    const query = new URLSearchParams({ find: text, limit: String(MOST) });
    const answer = await fetch(`${by("app").dataset.base}api/v1/runs/${encodeURIComponent(run)}/sandboxes?${query}`);
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    const { sandboxes } = await answer.json();
    // A slower answer to an earlier text, or to another run's, must not replace a newer one.
    if (mine !== asked || state.boot.run !== run) return;
    const rows = sandboxes.map(failure);
    const more = rows.length === MOST ? `The newest ${MOST} with` : `${rows.length || "No"} sandbox${rows.length === 1 ? "" : "es"} with`;
    show(rows, `${more} “${text}” in id or name.`, "Found");
  } catch (error) {
    if (mine === asked) show([], error instanceof TypeError ? "The server cannot be reached." : error.message, "Found");
  }
}

let run = "";
drawers.push(() => {
  const where = by("box-find");
  if (!where) return;
  if (!where.firstElementChild) where.append(field());
  if (run && run !== state.boot.run) (where.querySelector("input").value = ""), reset();
  run = state.boot.run;
});
