// Silences: a small form at an alert, which the server's API answers. Matchers are exact; fewer of them silence more.
import { by, make, say } from "../core/dom.mjs";
import { now, poke } from "../core/live.mjs";
import { state } from "../core/state.mjs";

/** @type {[string, number][]} */
const HOURS = [["1 h", 1], ["4 h", 4], ["24 h", 24], ["until …", 0]];
const NAME = "rollscope-name", LOST = "The server cannot be reached.";
let made = 0;

// The user's name, as typed once in this browser: of silences and of own panels.
export function userName() {
  try { return localStorage.getItem(NAME) || ""; } catch (blocked) { return ""; }
}

export function keepUserName(name) {
  try { localStorage.setItem(NAME, name); } catch (blocked) { /* private mode: asked again next time */ }
}

function choice(type, name, text, checked) {
  const label = make("label"), input = make("input");
  Object.assign(input, { type, name, checked });
  label.append(input, make("span", text));
  return [label, input];
}

function group(legend, ...children) {
  const el = make("fieldset");
  el.append(make("legend", legend), ...children);
  return el;
}

function field(text, value, limit) {
  const label = make("label", text, "field"), input = make("input");
  Object.assign(input, { type: "text", value, maxLength: limit, autocomplete: "off" });
  label.append(input);
  return [label, input];
}

function matchers(row) {
  return Object.entries(row.labels).map(([name, value]) => [...choice("checkbox", "matcher", `${name}=${value}`, true), name, value]);
}

// How many of the alerts on this page it would hold: widening must not come as a surprise.
function reach(chosen) {
  const ids = ["firing", "pending", "muted"].flatMap((list) => state.view["alerts." + list] || []);
  const holds = (id) => chosen.every(({ name, value }) => state.view["alert." + id].labels[name] === value);
  return ids.filter(holds).length;
}

// A local date and time in the field's format.
const local = (ms) => new Date(ms - 60000 * new Date(ms).getTimezoneOffset()).toISOString().slice(0, 16);

function durations(id) {
  const radios = HOURS.map(([text], i) => choice("radio", "for-" + id, text, i === 0));
  const [label, until] = field("Until", "", 16);
  Object.assign(until, { type: "datetime-local", value: local(1000 * (now() + 8 * 3600)), min: local(1000 * now()) });
  label.hidden = true;
  const box = group("For how long", ...radios.map(([el]) => el), label);
  const picked = () => HOURS[radios.findIndex(([, input]) => input.checked)];
  const ends = () => (picked()[1] ? now() + 3600 * picked()[1] : Date.parse(until.value) / 1000);
  box.addEventListener("change", () => (label.hidden = Boolean(picked()[1])));
  return { box, ends, words: () => (picked()[1] ? "for " + picked()[0] : "until " + until.value.replace("T", " ")) };
}

export function silenceForm(button, row) {
  const card = button.closest(".alert"), open = card.querySelector("form");
  if (open) return close(card, button);
  const id = ++made, form = make("form", "", "silence"), list = matchers(row), time = durations(id);
  const [nameLabel, name] = field("Your name", userName(), 100), [whyLabel, why] = field("Reason", "", 500);
  const says = make("p", "", "note"), wrong = make("p", "", "error"), submit = make("button", "", "strong"), cancel = make("button", "Cancel", "plain");
  cancel.type = "button";
  wrong.setAttribute("role", "alert");
  form.setAttribute("aria-label", `Silence ${row.name}`);
  const chosen = () => list.filter(([, input]) => input.checked).map(([, , label, value]) => ({ name: label, value, isRegex: false, isEqual: true }));
  const refresh = () => {
    const count = chosen().length, hits = reach(chosen());
    submit.textContent = "Silence " + time.words();
    submit.disabled = !count || !(time.ends() > now());
    says.textContent = !count ? "Keep at least one label." : `Silences ${hits} alert${hits === 1 ? "" : "s"} now and every later alert with these labels.`;
  };
  form.append(group("Alerts with all these labels", ...list.map(([label]) => label)), time.box, nameLabel, whyLabel, says, wrong, submit, cancel);
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepUserName(name.value.trim());
    const body = { matchers: chosen(), startsAt: stamp(now()), endsAt: stamp(time.ends()), createdBy: name.value.trim() || "dashboard", comment: why.value.trim() };
    send(body, submit, wrong, () => (close(card, button), done(`${row.name}: silenced ${time.words()}.`)));
  });
  form.addEventListener("keydown", (event) => event.key === "Escape" && close(card, button));
  cancel.addEventListener("click", () => close(card, button));
  card.append(form);
  button.setAttribute("aria-expanded", "true");
  refresh();
  submit.focus();
}

const stamp = (seconds) => new Date(1000 * seconds).toISOString();

function close(card, button) {
  card.querySelector("form").remove();
  button.setAttribute("aria-expanded", "false");
  button.focus();
}

// Announces the result to screen readers and polls at once. The row moves when it is muted and its button
// goes with it, so the focus moves to the message.
function done(words) {
  say("alerts-said", words);
  poke();
}

async function call(method, path, body) {
  const headers = body ? { "content-type": "application/json" } : {};
  const answer = await fetch(by("app").dataset.base + "api/v1/silences" + path, { method, headers, body: body && JSON.stringify(body) });
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const detail = Array.isArray(found.detail) ? found.detail.map((one) => one.msg).join("; ") : found.detail;
  throw new Error(detail || `The server answered ${answer.status}.`);
}

// `fetch` throws TypeError when the server does not answer.
const words = (error) => (error instanceof TypeError ? LOST : error.message);

async function send(body, button, wrong, then) {
  button.disabled = true;
  wrong.textContent = "";
  try {
    await call("POST", "", body);
  } catch (error) {
    wrong.textContent = "Not silenced: " + words(error);
    button.disabled = false;
    // A disabled button has lost the focus.
    return button.focus();
  }
  then();
}

export async function endSilence(id, button) {
  button.disabled = true;
  try {
    await call("DELETE", "/" + encodeURIComponent(id));
    done("The silence has ended.");
  } catch (error) {
    by("alerts-said").textContent = "Not ended: " + words(error);
    button.disabled = false;
    button.focus();
  }
}
