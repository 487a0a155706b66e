// Drawings over time as plain SVG: a heat map with its axes, lines over it, the cell under the cursor; lines over charts.
import { make } from "../core/dom.mjs";
import * as format from "../core/format.mjs";
import { painters } from "../core/state.mjs";
import { plots, range } from "./chart.mjs";
import { reads, tell } from "./cursor.mjs";
import { across, toX } from "./step_axis.mjs";

const SVG = "http://www.w3.org/2000/svg", LEFT = 52, RIGHT = 8, TOP = 6, AXIS = 20, DAY = 86400000;

export function svg(tag, attributes, words) {
  const el = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) el.setAttribute(name, value);
  if (words !== undefined) el.textContent = words;
  return el;
}

export function canvas(where, height, label) {
  const width = where.clientWidth, el = svg("svg", { width, height, role: "img", "aria-label": label });
  where.replaceChildren(el);
  return el;
}

// A gap in the data is a gap in the line; a point alone is a dot.
export function line(points, name) {
  let path = "", pen = "M", alone = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) {
      if (alone) path += "h.01";
      pen = "M";
      alone = false;
      continue;
    }
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    alone = pen === "M";
    pen = "L";
  }
  return svg("path", { d: path + (alone ? "h.01" : ""), class: name });
}

const STEPS = [15, 60, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000].map((s) => 1000 * s);
export function timeTicks(g, { start, end, x, wide, bottom, left = LEFT }) {
  const step = STEPS.find((s) => (end - start) / s <= Math.max(2, wide / 90)) || end - start;
  for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
    const words = step >= DAY ? format.clock(at, true).slice(0, 5) : format.clock(at).slice(0, step < 60000 ? 8 : 5);
    if (x(at) > left + 14 && x(at) < left + wide - 14) g.append(svg("text", { x: x(at), y: bottom + 14, "text-anchor": "middle" }, words));
  }
}

// `names`: of the rows from below, "" for none, at their upper edges or in the middle; `columns`: [[from, to, [[row, how many], ...]], ...] in local ms.
// What it returns places things: x of a time, y of a row (its lower edge; in between by parts).
export function heatMap(where, { names, middle = false, columns, most, tall, label }) {
  const rows = names.length, [start, end] = range(), wide = where.clientWidth - LEFT - RIGHT, bottom = TOP + rows * tall;
  const x = (ms) => LEFT + (wide * (ms - start)) / (end - start), y = (row) => bottom - row * tall;
  const inside = (at) => Math.min(LEFT + wide, Math.max(LEFT, at)), el = canvas(where, bottom + AXIS, label);
  const axes = svg("g", { class: "axes" }), cells = svg("g", { class: "cells" });
  names.forEach((name, i) => {
    axes.append(svg("line", { x1: LEFT, x2: LEFT + wide, y1: y(i + 1) - 0.5, y2: y(i + 1) - 0.5 }));
    if (name) axes.append(svg("text", { x: LEFT - 6, y: y(i + 1) + 4 + (middle ? tall / 2 : 0), "text-anchor": "end" }, name));
  });
  timeTicks(axes, { start, end, x, wide, bottom });
  for (const [from, to, counts] of columns) {
    const left = inside(x(from)), right = inside(x(to));
    if (right - left < 0.5) continue;
    for (const [row, count] of counts) {
      const strength = 0.16 + 0.84 * Math.sqrt(count / (most || 1));
      cells.append(svg("rect", { x: left.toFixed(1), y: y(row + 1), width: Math.max(1, right - left - 1).toFixed(1), height: tall - 1, "fill-opacity": strength.toFixed(2) }));
    }
  }
  el.append(axes, cells);
  return { el, x, y, top: TOP, left: LEFT, wide, rows, tall, start, end, bottom };
}

// The time and the row under the cursor; null outside the drawing.
export function heatAt(where, place, event) {
  const area = where.getBoundingClientRect();
  const ms = place.start + ((event.clientX - area.left - LEFT) / place.wide) * (place.end - place.start);
  const row = place.rows - 1 - Math.floor((event.clientY - area.top - TOP) / place.tall);
  return ms < place.start || ms > place.end || row < 0 || row >= place.rows ? null : { ms, row };
}

export const when = (ms, place) => (place.end - place.start > DAY ? format.clock(ms, true).slice(0, 11) : format.clock(ms).slice(0, 5));

// One path over every chart: `drawn` returns it from x of a time, the upper and lower edge and the panel.
export function over(layer, name, drawn) {
  const [from, to] = across(...range());
  for (const [el, gd] of plots()) {
    const { _offset: left, _length: wide } = gd._fullLayout.xaxis, { t: top, h: high } = gd._fullLayout._size;
    const d = drawn((ms) => left + (wide * (toX(ms) - from)) / (to - from), top, top + high, el);
    // A layer without marks is not created.
    if (!d && !el.querySelector(`.${layer}`)) continue;
    const path = overlay(el.querySelector(".plot"), layer, name);
    if (path.getAttribute("d") !== d) path.setAttribute("d", d);
  }
}

function overlay(plot, layer, name) {
  const there = plot.querySelector(`.${layer} path`);
  if (there) return there;
  const el = svg("svg", { class: layer, "aria-hidden": "true" }), path = svg("path", { class: name });
  el.append(path);
  plot.append(el);
  return path;
}

// Painted whenever the charts move, and again when their width has changed.
export function repaint(paint) {
  let later = null;
  painters.push(paint);
  window.addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(paint, 200);
  });
}

// What the shades mean: how many the darkest stands for, in how wide a column.
export function scale(name, most, seconds) {
  const where = document.querySelector(`[data-scale=${name}]`), per = format.span(seconds), key = `${most} ${per}`;
  if (!where || where.dataset.most === key) return;
  where.dataset.most = key;
  const words = [make("span", most > 1 ? "1" : ""), make("i"), make("span", `${(most || 0).toLocaleString("en")} in ${per}`)];
  where.replaceChildren(...(most ? words : []));
}

// Drawings are as wide as their boxes, which have a width once they are seen. What is drawn sets the height: only
// the width is watched.
const draws = new WeakMap();
let seer = null;
export function fitted(el, draw) {
  if (!el || draws.has(el)) return;
  seer ||= new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.wide === target.clientWidth) continue;
      target.wide = target.clientWidth;
      draws.get(target)();
    }
  });
  draws.set(el, draw);
  seer.observe(el);
}

// The same for a drawing with values under the cursor: `words` returns the tooltip's lines from an event and what was drawn.
export function readable(area, draw, words) {
  fitted(area, draw);
  if (area) reads(area, (event) => tell(event, area.look && words(event, area.look, area)));
}
