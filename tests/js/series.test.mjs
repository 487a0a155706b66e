import assert from "node:assert/strict";
import { test } from "node:test";
import { bands } from "../../dashboard/assets/widgets/bands.mjs";
import { forget, insert, nearest } from "../../dashboard/assets/widgets/series.mjs";

// As the charts do: what `insert` returns is appended.
function added(trace, points, width) {
  for (const [x, y] of points) {
    const fresh = insert(trace, x, y, width);
    if (fresh) trace.x.push(fresh[0]), trace.y.push(fresh[1]);
  }
  return [trace.x, trace.y];
}

test("points of one bucket become one: the mean of a line, the extremes of its edges", () => {
  const points = [[0, 2], [4, 4], [8, 9], [10, 7]];
  assert.deepEqual(added({ meta: "kv.0", x: [], y: [] }, points, 10), [[0, 10], [5, 7]]);
  assert.deepEqual(added({ meta: "kv.0:lo", x: [], y: [] }, points, 10), [[0, 10], [2, 7]]);
  assert.deepEqual(added({ meta: "kv.0:hi", x: [], y: [] }, points, 10), [[0, 10], [9, 7]]);
});

test("a gap shares no bucket", () => {
  assert.deepEqual(added({ meta: "kv.0", x: [], y: [] }, [[0, 2], [1, null], [2, 4]], 10), [[0, 1, 2], [2, null, 4]]);
});

test("a late point finds its place, and one of the same time replaces", () => {
  assert.deepEqual(added({ meta: "kv.0", x: [0, 20, 40], y: [1, 2, 3] }, [[10, 7], [20, 8]], 5), [[0, 10, 20, 40], [1, 7, 8, 3]]);
});

test("what left the window is dropped, but for the point before it", () => {
  const trace = { x: [0, 10, 20, 30, 40], y: [1, 2, 3, 4, 5] };
  forget(trace, 25);
  assert.deepEqual(trace, { x: [20, 30, 40], y: [3, 4, 5] });
  forget(trace, 100);
  assert.deepEqual(trace.x, [30, 40]);
});

test("the nearest point, the earlier of two that are as near", () => {
  assert.deepEqual([-5, 4, 5, 6, 10, 99].map((x) => nearest([0, 10, 20], x)), [0, 0, 0, 1, 1, 2]);
});

test("a band is closed where both lines have a value", () => {
  const lower = { meta: "a", x: [0, 10, 20, 30], y: [1, 1, null, 1] }, upper = { meta: "b", x: [0, 10, 20, 30], y: [3, 4, 4, 4] };
  const band = { meta: "b:band", customdata: ["a"], x: [], y: [] };
  bands([lower, upper, band]);
  // Along the upper line, back along the lower one, and closed; each line has a corner at its step.
  assert.deepEqual(band.x, [0, 10, 10, 10, 20, 20, 10, 10, 10, 0, 0, null, 30, 30, 30, null]);
  assert.deepEqual(band.y, [3, 3, 3, 4, 4, 1, 1, 1, 1, 1, 3, null, 4, 1, 4, null]);
});
