// The whole program in a page without elements: its modules import each other in circles, so that what runs while they
// are loaded must not use what is not there yet.
import assert from "node:assert/strict";
import { test } from "node:test";

const started = [];
globalThis.document = { documentElement: { dataset: {} }, addEventListener() {}, getElementById: () => null, querySelector: () => null, querySelectorAll: () => [] };
globalThis.location = { hash: "", search: "", pathname: "/" };
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.setInterval = () => 0;
globalThis.window = {
  dash_clientside: { no_update: "no update" },
  addEventListener() {},
  DashRenderer: class {
    constructor() {
      started.push(Object.keys(window.dash_clientside.rollscope));
    }
  },
};
const page = await import("../../dashboard/assets/main.mjs");

test("Dash starts once, with its callbacks, which do nothing before there is a page", () => {
  assert.deepEqual(started, [["open", "boot", "pull", "apply"]]);
  assert.equal(page.state.boot, null);
  assert.equal(window.dash_clientside.rollscope.pull(), "no update");
});

test("a chart over steps: x of a time and back", () => {
  page.state.tz = 0;
  page.state.boot = { stepped: ["reward.0"], error: null };
  // Column 2 of 100 s: step 7 ended after 10 s and took 5 s, step 8 after 30 s and took 10 s; between them nothing runs.
  Object.assign(page.state.view, { "step_axis.width": 100, "step_axis.2": [[10, 7, 5, 6], [30, 8, 10]] });
  const figure = { data: [{ meta: "reward.0", x: [209000, 230000], y: [1, 2] }], layout: { xaxis: { range: [200000, 230000] } } };
  const shown = page.overSteps(figure);
  assert.equal(page.byStep(), true);
  assert.deepEqual([205000, 207500, 210000, 215000, 225000, 230000].map(page.toX), [6, 6.5, 7, 7, 7.5, 8]);
  assert.deepEqual([6.5, 7.5, 8].map(page.toMs), [207500, 225000, 230000]);
  // A signal with one value per step stands at the step.
  assert.deepEqual(shown.data[0].x, [7, 8]);
  assert.deepEqual(shown.layout.xaxis.range, [6, 8]);
});

test("the step and the version at a time, where they are known", () => {
  page.state.tz = 0;
  const at = [204000, 206000, 210000, 215000, 225000, 231000];
  // Between 10 and 20 s no step was in progress; the newest is followed by the next one.
  assert.deepEqual(at.map(page.stepAt), [null, 7, 7, null, 8, 9]);
  const cells = { "weight_updates.width": 100, "weight_updates.whole": 1, "weight_updates.2": [[5, 40], [20, null], [25, 41]] };
  Object.assign(page.state.view, cells);
  assert.deepEqual([204000, 205000, 221000, 226000].map(page.updateAt), [null, 40, 40, 41]);
  page.state.view["weight_updates.whole"] = 0;
  assert.equal(page.updateAt(226000), null);
});

test("events that are close together are one mark, which starts at the first", () => {
  const events = [0, 10, 23, 24, 60].map((ms) => ({ ms }));
  const groups = page.grouped(events, (ms) => 2 * ms, 30).map(([x, some]) => [x, some.length]);
  assert.deepEqual(groups, [[0, 2], [46, 2], [120, 1]]);
});

test("zooming out doubles a time, up to what there is", () => {
  assert.deepEqual(page.wider(40, 60, 0, 1000), [30, 70]);
  assert.deepEqual(page.wider(960, 1000, 0, 1000), [920, 1000]);
  assert.deepEqual(page.wider(10, 90, 0, 100), [0, 100]);
});

test("a range in words", () => {
  const at = (text) => Date.parse(text + "Z");
  Object.assign(page.state, { tz: 0, boot: { now: at("2026-01-02T12:00:00") / 1000 } });
  assert.equal(page.rangeWords([at("2026-01-02T10:00:00"), at("2026-01-02T11:30:00")]), "10:00 to 11:30");
  assert.equal(page.rangeWords([at("2026-01-01T10:00:00"), at("2026-01-01T10:01:00")]), "01-01 10:00:00 to 10:01:00");
  assert.equal(page.rangeWords([at("2026-01-01T22:00:00"), at("2026-01-02T01:00:00")]), "01-01 22:00 to 01:00");
});
