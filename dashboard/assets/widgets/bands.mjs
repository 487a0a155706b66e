// Bands between two lines of a chart (`figures._fill`): closed shapes where both lines have a value, nothing elsewhere.

// [x, y] of both lines in the order of x; a value holds until the next one, and a gap ends the shape.
function shapes(lower, upper) {
  const points = [...lower.x.map((x, i) => [x, 0, lower.y[i]]), ...upper.x.map((x, i) => [x, 1, upper.y[i]])];
  points.sort((a, b) => a[0] - b[0]);
  const now = [null, null], found = [];
  let open = null;
  points.forEach(([x, edge, y], i) => {
    // Both lines hold their value up to this point, unless one of them ends at it.
    if (open && now[0] !== null && now[1] !== null) open.push([x, now[0], now[1]]);
    now[edge] = y ?? null;
    // Both lines may have a point at one time.
    if (i + 1 < points.length && points[i + 1][0] === x) return;
    const both = now[0] !== null && now[1] !== null;
    if (both) (open ||= []).push([x, now[0], now[1]]);
    if (!both && open) found.push(open), (open = null);
  });
  return open ? [...found, open] : found;
}

export function bands(data) {
  for (const trace of data) {
    const [slot, edge] = String(trace.meta).split(":");
    if (edge !== "band") continue;
    const lower = data.find((other) => other.meta === trace.customdata[0]), upper = data.find((other) => other.meta === slot);
    trace.x = [];
    trace.y = [];
    for (const shape of lower && upper ? shapes(lower, upper) : []) {
      trace.x.push(...shape.map(([x]) => x), ...shape.map(([x]) => x).reverse(), shape[0][0], null);
      trace.y.push(...shape.map(([, , high]) => high), ...shape.map(([, low]) => low).reverse(), shape[0][2], null);
    }
  }
}
