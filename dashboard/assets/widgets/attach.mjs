// A server without a run: how to follow one that was found, push one, or start a simulated one. Each command is copied with
// one click. The page starts no command and adds no target: the server has no route for that.
import { by, make } from "../core/dom.mjs";

// A second server could open neither this one's port nor its store, so `watch` sends to this one.
const here = () => location.origin + by("app").dataset.base.replace(/\/$/, "");
let chosen = "Attach";

// Paths in commands are relative to the server's folder (`server.targets.local_scan`).
const RUN = "run it in a terminal of this machine, in the folder where Rollscope was started. This page then opens the run.";

function entry({ text, command, follow }) {
  const li = make("li"), code = make("code", command), copy = make("button", follow ? "Follow" : "Copy", "plain"), next = make("p", "", "note");
  copy.type = "button";
  if (follow) copy.setAttribute("aria-label", `Follow ${text}`);
  next.setAttribute("role", "status");
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(code);
    if (follow) next.textContent = `The command is selected: copy it, and ${RUN}`;
    if (navigator.clipboard) navigator.clipboard.writeText(command).then(() => {
      if (follow) next.textContent = `The command is copied: ${RUN}`;
      else copy.textContent = "Copied";
    }, () => {});
  });
  li.append(make("span", text), code, copy, next);
  return li;
}

function tabs(found, push) {
  const to = " --push " + here();
  return {
    Attach: [...found.map(({ text, command }) => ({ text, command: command + to, follow: true })), { text: `${found.length ? "Another" : "A"} run: its engines and its run directory`, command: "rollscope watch http://127.0.0.1:8000 ./outputs/my-run" + to }],
    Push: [{ text: "From the training process, one line per rollout (Python, no dependency)", command: push.replace("@here@", here()) },
      { text: "Metrics as Prometheus text, by Rollscope's names", command: `curl --data-binary @metrics.txt "${here()}/api/v1/write?run=my-run"` },
      { text: "Metrics of an OpenTelemetry SDK", command: `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=${here()}/v1/metrics\nOTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf` }],
    Demo: [{ text: "A simulated run, as a server of its own", command: "rollscope demo --port 0" }],
  };
}

export function attach(where, found, push) {
  // The page is loaded again from time to time: where nothing changed, the focus stays.
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
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show(names[(names.indexOf(chosen) + step + names.length) % names.length], true);
  });
  where.append(bar, list);
  show(chosen);
}
