// Numbers worked out by hand; `tests/dashboard/test_browser.py` compares the module with `dashboard/widgets/format.py`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { age, clock, id, money, number, span, text } from "../../dashboard/assets/core/format.mjs";

test("a number has three digits, and a suffix from ten thousand", () => {
  assert.deepEqual([0, 0.05, 0.123, 0.5, 9.99, 10, 99.9, 100].map(number), ["0", "0.05", "0.12", "0.5", "9.99", "10", "99.9", "100"]);
  assert.deepEqual([999.4, 999.5, 9999, 10000, 1.5e6, 2e9, 3.25e12].map(number), ["999", "1,000", "9,999", "10k", "1.5M", "2G", "3.25T"]);
  assert.deepEqual([0.00099, -0.0001, -1234].map(number), ["9.9e-04", "-1.0e-04", "-1,234"]);
});

test("a value with its unit", () => {
  assert.deepEqual([0, 0.044, 0.0994, 0.0995, 0.5, 1].map((value) => text(value, "ratio")), ["0%", "4.4%", "9.9%", "10%", "50%", "100%"]);
  assert.deepEqual([1.5, 119, 120, 7199, 7200].map((value) => text(value, "seconds")), ["1.5 s", "119 s", "2 min", "120 min", "2 h"]);
  assert.deepEqual([text(0.8, "usd/h"), text(0, "usd"), text(5, "hours"), text(3, "samples"), text(3, "")], ["$0.80/h", "$0", "5 h", "3 samples", "3"]);
  assert.deepEqual([text(61, "celsius"), text(410, "watts"), text(52300, "watts"), text(1.98e9, "hertz")], ["61 °C", "410 W", "52.3 kW", "1.98 GHz"]);
  assert.equal(text(0.0000607, "seconds"), "60.7 µs");
  assert.deepEqual([null, undefined, NaN, Infinity].map((value) => text(value, "ratio")), ["–", "–", "–", "–"]);
  assert.deepEqual([0, 0.5, 999.99, 999.999].map(money), ["$0", "$0.50", "$999.99", "$1,000"]);
});

test("ages and spans", () => {
  assert.deepEqual([-5, 89, 90, 5399, 5400, 172799, 172800].map(age), ["0 s ago", "89 s ago", "2 min ago", "90 min ago", "2 h ago", "48 h ago", "2 d ago"]);
  assert.deepEqual([89, 720, 19200, 7200, 259200].map(span), ["89 s", "12 min", "5 h 20 min", "2 h", "3 d"]);
});

test("ids and clocks", () => {
  assert.equal(id("0123456789abcdef01234567"), "01234567…");
  assert.equal(id("0123456789abcdef0123456"), "0123456789abcdef0123456");
  assert.equal(id("rollout-of-no-hexadecimal-digits"), "rollout-of-no-hexadecimal-digits");
  const at = Date.UTC(2026, 0, 2, 3, 4, 5);
  assert.deepEqual([clock(at), clock(at, true)], ["03:04:05", "01-02 03:04"]);
});
