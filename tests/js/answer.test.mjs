// The texts of the answer card, worked out by hand.
import assert from "node:assert/strict";
import { test } from "node:test";
import "./main.test.mjs";
const { effect, gain } = await import("../../dashboard/assets/widgets/answer.mjs");

test("a gain is a range of factors", () => {
  assert.equal(gain([1.08, 1.52, 1.97]), "1.1× to 2.0× samples/s");
  assert.equal(gain([0.98, 1.2, 10.4]), "0.98× to 10× samples/s");
});

test("a side effect names its signal in words", () => {
  assert.equal(effect({ signal: "staleness_versions", from: 2.5, to: 4.8 }), "staleness 2.5 → 4.8");
  assert.equal(effect({ signal: 'generator_requests{state="running"}', from: 330, to: 660 }), "generator requests 330 → 660");
});
