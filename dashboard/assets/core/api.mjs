// The server's API: reads of it, and the names of series as it writes them.
import { by } from "./dom.mjs";

export const runApi = (run, what, query) => `${by("app").dataset.base}api/v1/runs/${encodeURIComponent(run)}/${what}${query ? "?" + query : ""}`;

export const apiPath = (path, query) => `${by("app").dataset.base}api/v1/${path}?${new URLSearchParams(query)}`;

// The answer; an `Error` with the server's own words where there is one.
export async function readJson(url, options = {}) {
  const answer = await fetch(url, options);
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  throw new Error(typeof body.detail === "string" ? body.detail : `The server answered ${answer.status}.`);
}
export const reason = (error) => (error instanceof TypeError ? "the server cannot be reached" : error.message);

// Names have commas between their labels: those within braces do not part.
export const seriesNames = (words) => [...new Set(words.match(/(?:[^,{]|\{(?:"(?:[^"\\]|\\.)*"|[^"}])*\})+/g) || [])];

/** `kv{engine="0"}` as ["kv", { engine: "0" }]. @param {string} name @returns {[string, Object<string, string>]} */
export function parseName(name) {
  const labels = [...name.matchAll(/([\w.:]+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c))]);
  return [name.split("{")[0], Object.fromEntries(labels)];
}

// The other way round: labels in the order of their names.
export function seriesName(name, labels) {
  const escaped = (value) => value.replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n");
  const parts = Object.keys(labels).sort().map((key) => `${key}="${escaped(labels[key])}"`);
  return name + (parts.length ? `{${parts.join(",")}}` : "");
}
