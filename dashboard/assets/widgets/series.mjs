// Points of a series in the order of x: one more, those that left the window, and the nearest one. Imports nothing.

// By trace: how many points are in its newest bucket.
const buckets = new WeakMap();

// One point into one trace. Late points find their place; points of one bucket become one, but never with a gap.
export function insert(trace, x, y, width) {
  const xs = trace.x, ys = trace.y, last = xs.length - 1;
  const seen = buckets.get(trace) || { n: 1 };
  const edge = String(trace.meta).split(":")[1];
  if (x > xs[last] && x - xs[last] < width && y !== null && ys[last] !== null) {
    const mean = (ys[last] * seen.n + y) / (seen.n + 1);
    buckets.set(trace, { n: seen.n + 1 });
    return void (ys[last] = edge === "lo" ? Math.min(ys[last], y) : edge === "hi" ? Math.max(ys[last], y) : mean);
  }
  if (last < 0 || x > xs[last]) {
    buckets.set(trace, { n: 1 });
    return [x, y];
  }
  let at = last;
  while (at > 0 && xs[at - 1] >= x) at--;
  if (xs[at] === x) ys[at] = y;
  else xs.splice(at, 0, x), ys.splice(at, 0, y);
}

// Drops points before the window (or the zoom, which may start earlier).
export function forget(trace, oldest) {
  let gone = 0;
  while (gone < trace.x.length - 2 && trace.x[gone + 1] < oldest) gone++;
  if (gone) trace.x.splice(0, gone), trace.y.splice(0, gone);
}

// The index of the nearest of ascending xs.
export function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}
