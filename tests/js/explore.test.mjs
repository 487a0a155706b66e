// Names of series, and how the explorer groups and finds them; worked out by hand.
import assert from "node:assert/strict";
import { test } from "node:test";
import "./main.test.mjs";
const { seriesNames: names, parseName: parse, seriesName: selector } = await import("../../dashboard/assets/core/api.mjs");
const { split, lineLabels } = await import("../../dashboard/assets/widgets/own_chart.mjs");
const { catalogue, matching } = await import("../../dashboard/assets/widgets/explore.mjs");

test("a name with labels, and back", () => {
  const name = 'kv{engine="0",path="a\\"b\\\\c,{d}"}';
  assert.deepEqual(parse(name), ["kv", { engine: "0", path: 'a"b\\c,{d}' }]);
  assert.equal(selector(...parse(name)), name);
  assert.equal(selector("kv", {}), "kv");
  assert.deepEqual(names(`${name},up,up`), [name, "up"]);
});

test("lines are lineLabels apart by the labels that differ", () => {
  const series = ['kv{engine="0",target="a"}', 'kv{engine="1",target="a"}', 'kv{engine="1",target="b"}'];
  assert.deepEqual(lineLabels(series), ["0 · a", "1 · a", "1 · b"]);
  assert.deepEqual(lineLabels(series.slice(0, 2)), ["0", "1"]);
  assert.deepEqual(lineLabels(['kv{target="a"}']), ["now"]);
  // The engines' lines have an engine "0" each, which the mean of all has not.
  assert.deepEqual(lineLabels(['kv{engine="0",target="a"}', 'kv{engine="0",target="b"}', 'kv{stat="max"}', 'kv{stat="mean"}']), ["a", "b", "max", "mean"]);
  assert.deepEqual(lineLabels(['kv{engine="0",target="a"}', 'kv{target="a"}']), ["0", "now"]);
  const by = split(series.map((name) => ({ name, unit: "", ts: [], mean: [] })), "engine");
  assert.deepEqual([...by].map(([value, some]) => [value, some.length]), [["0", 1], ["1", 2]]);
});

test("the catalogue: what the run reports is shown, the rest is found by words", () => {
  const metrics = [
    { name: "gpu_power_watts", unit: "watts", actor: "generator", help: "Power drawn." },
    { name: "up", unit: "", actor: "", help: "1 if it answered.", newest: 5, series: [{ name: 'up{target="a"}' }], unlisted: 3 },
  ];
  const signals = [
    { name: "entropy", title: "Entropy", unit: "nats", actor: "trainer", help: "", series: { entropy: { value: 0.5, ts: 9 } } },
    { name: "reward", title: "Reward", unit: "reward", actor: "trainer", help: "", series: { reward: { value: null, ts: null } } },
    { name: "sandboxes_created_total", title: "Created", unit: "", actor: "sandbox", help: "" },
  ];
  const rows = catalogue(metrics, signals);
  assert.deepEqual(rows.map((row) => row.name), ["entropy", "up", "reward", "gpu_power_watts"]);
  assert.deepEqual(matching(rows, "").map((row) => row.name), ["entropy", "up"]);
  assert.deepEqual(matching(rows, "Power WATTS").map((row) => row.name), ["gpu_power_watts"]);
  assert.deepEqual(matching(rows, "power nats"), []);
});

test("a signal that never had a value is not reported by the run, one whose source is silent is", () => {
  const metrics = [{ name: "kv_usage", unit: "ratio", actor: "generator", help: "", newest: 5, series: [{ name: "kv_usage" }] }];
  const signal = (name, input, value) => ({ name, title: name, unit: "", actor: "trainer", help: "", enable: "log it", inputs: [input], series: { [name]: { value, ts: 7 } } });
  const signals = [signal("scores", "score", null), signal("kv", "kv_usage", null), signal("wait", "wait_seconds", 0.5)];
  const rows = catalogue(metrics, signals);
  assert.deepEqual(matching(rows, "").map(({ name, newest }) => [name, newest]), [["kv", null], ["wait", 7], ["kv_usage", 5]]);
  assert.deepEqual(rows.at(-1).missing, "log it");
  // Of a run that is not collected no signal has a value now.
  assert.equal(matching(catalogue([], signals.slice(0, 2)), "").length, 2);
});

const { moved } = await import("../../dashboard/assets/widgets/own_panels.mjs");

test("a panel moves to a place, and no further than the ends", () => {
  const ids = ["a", "b", "c"];
  assert.deepEqual(moved(ids, "a", 1), ["b", "a", "c"]);
  assert.deepEqual(moved(ids, "c", 0), ["c", "a", "b"]);
  assert.deepEqual(moved(ids, "c", 9), ids);
  assert.deepEqual(moved(ids, "a", -1), ids);
});
