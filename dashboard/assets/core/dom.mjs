// Elements: find them and make them. Texts are text nodes, so that names of runs and targets cannot become markup.

export const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
export const by = (id) => document.getElementById(id);
export const SVG = "http://www.w3.org/2000/svg";

export function make(tag, text, name) {
  const el = document.createElement(tag);
  if (text) words(el, text);
  if (name) el.className = name;
  return el;
}

// A text in which `names` between backticks are code.
export function words(el, text) {
  if (el.tagName === "CODE" || !/`[^`]+`/.test(text)) el.textContent = text;
  else el.replaceChildren(...String(text).split(/`([^`]+)`/).map((part, i) => (i % 2 ? make("code", part) : part)));
}

export function aged(at, none) {
  const el = make("span", at ? "" : none);
  if (at) el.dataset.at = at;
  return el;
}

// Announces a text to screen readers and moves the focus to it, before the focused element is removed.
export function say(id, words) {
  const el = by(id);
  el.textContent = words;
  el.tabIndex = -1;
  el.focus();
}

export function cellOf(label, ...children) {
  const td = make("td");
  td.dataset.label = label;
  td.append(...children);
  return td;
}
