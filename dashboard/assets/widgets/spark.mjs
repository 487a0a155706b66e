// Sparklines.
import { SVG, all } from "../core/dom.mjs";
import { state } from "../core/state.mjs";

// One path per sparkline; a gap in the data is a gap in the path.
export function drawSpark(key) {
  const box = all(`[data-spark="${key}"]`)[0];
  const [xs, ys] = state.sparks[key] || [[], []];
  const known = ys.filter((y) => y !== null);
  if (!box) return;
  if (known.length < 2) return box.replaceChildren();
  const low = Math.min(...known), high = Math.max(...known), first = xs[0], wide = xs[xs.length - 1] - first || 1;
  let pen = "M", path = "";
  ys.forEach((y, i) => {
    if (y === null) return (pen = "M");
    const up = high > low ? 25 - (22 * (y - low)) / (high - low) : 14;
    path += `${pen}${((100 * (xs[i] - first)) / wide).toFixed(1)} ${up.toFixed(1)}`;
    pen = "L";
  });
  const svg = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 100 28");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  svg.append(line);
  box.replaceChildren(svg);
}
