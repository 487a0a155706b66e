// A server without a run: how to attach one, push one, or start a simulated one. Each command is copied with one click.
import { by, make } from "../core/dom.mjs";

// A second server could open neither this one's port nor its store, so `watch` sends to this one.
const here = () => location.origin + by("app").dataset.base.replace(/\/$/, "");
let chosen = "Attach";

function entry({ text, command }) {
  const li = make("li"), code = make("code", command), copy = make("button", "Copy", "plain");
  copy.type = "button";
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(code);
    if (navigator.clipboard) navigator.clipboard.writeText(command).then(() => (copy.textContent = "Copied"), () => {});
  });
  li.append(make("span", text), code, copy);
  return li;
}

function tabs(found, push) {
  const to = " --push " + here();
  return {
    Attach: [...found.map(({ text, command }) => ({ text, command: command + to })), { text: "Another run: its engines and its run directory", command: "rollscope watch http://127.0.0.1:8000 ./outputs/my-run" + to }],
    Push: [{ text: "From the training process, one line per rollout (Python, no dependency)", command: push.replace("@here@", here()) },
      { text: "Prometheus text or OTLP metrics to the same server", command: `${here()}/v1/metrics` }],
    Demo: [{ text: "A simulated run, as a server of its own", command: "rollscope demo --port 0" }],
  };
}

export function attach(where, found, push) {
  // Asked again now and then: the focus stays where nothing changed.
  const key = JSON.stringify([found, push]);
  if (where.dataset.key === key) return;
  where.dataset.key = key;
  where.replaceChildren();
  if (!found) return;
  const sets = tabs(found, push), names = Object.keys(sets), bar = make("div", "", "tabs"), list = make("ul");
  bar.setAttribute("role", "tablist");
  list.setAttribute("role", "tabpanel");
  const show = (name, focus) => {
    chosen = name;
    for (const tab of bar.children) {
      const on = tab.textContent === name;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on && focus) tab.focus();
    }
    list.setAttribute("aria-label", name);
    list.replaceChildren(...sets[name].map(entry));
  };
  bar.append(...names.map((name) => {
    const tab = make("button", name);
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => show(name));
    return tab;
  }));
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) show(names[(names.indexOf(chosen) + by + names.length) % names.length], true);
  });
  where.append(bar, list);
  show(chosen);
}
