"""Each pair that excludes itself: an answer that has it, and the nearest one that has not."""

from typing import Any

import pytest

from bench.verdict.contradictions import RULES, Walker

IDLE = {'generator_engines{state="up"}': 2.0, 'generator_requests_now{state="running"}': 3.0}
BUSY = {'generator_engines{state="up"}': 2.0, 'generator_requests_now{state="running"}': 40.0}
PENDING = {
    'sandboxes{state="queued"}': 552.0,
    'sandboxes{state="starting"}': 128.0,
    'sandboxes{state="running"}': 280.0,
}
READY = {'sandboxes{state="queued"}': 0.0, 'sandboxes{state="starting"}': 20.0, 'sandboxes{state="running"}': 940.0}
FULL = {'generator_requests{state="running"}': 64.0, 'generator_requests{state="waiting"}': 30.0}
NO_QUEUE = {'generator_requests{state="running"}': 64.0, 'generator_requests{state="waiting"}': 0.0}
DOWN = {'generator_engines{state="up"}': 0.0, 'generator_engines{state="down"}': 1.0}
ONE_UP = {'generator_engines{state="up"}': 1.0, 'generator_engines{state="down"}': 1.0}
BOTH_WAITS = "The trainer waited 0% of the time in its last 4 steps (82% in the last ten)"
WAITS = "Scoring limits the run: the trainer waits 93% of each step"
MORE = "Make tool calls faster or run more rollouts at once: the engines wait for them."

Case = tuple[str, tuple[str, str], dict[str, Any], dict[str, Any]]
"""(rule, outcome and cause, what contradicts it, what is the nearest that does not)."""

CASES: tuple[Case, ...] = (
    ("sandboxes without sandboxes", ("sandbox_bound", "spin_up"), {"facts": {"has_sandbox": 0.0}}, {}),
    (
        "sandboxes without sandboxes",
        ("generator_bound", "drift"),
        {"facts": {"has_sandbox": 0.0}, "limiters": [("sandbox_bound", "spin_up", 0.3)]},
        {"facts": {"has_sandbox": 0.0}, "limiters": [("sandbox_bound", "spin_up", 0.01)]},
    ),
    ("queue in a synchronous run", ("orchestrator_bound", "staleness_gate"), {"mode": "sync_split"}, {"mode": "async"}),
    ("tools while sandboxes pend", ("sandbox_bound", "tool_time"), {"signals": PENDING}, {"signals": READY}),
    ("too few engines that idle", ("generator_bound", "too_few_engines"), {"signals": IDLE}, {"signals": BUSY}),
    (
        "starved engines that are full",
        ("orchestrator_bound", "staleness_gate"),
        {"signals": FULL, "numbers": {"engine_occupancy_ratio": 1.0}},
        {"signals": NO_QUEUE, "numbers": {"engine_occupancy_ratio": 1.0}},
    ),
    (
        "balanced while it waits",
        ("balanced", ""),
        {"signals": {"trainer_wait_ratio": 0.44}},
        {"signals": {"trainer_wait_ratio": 0.29}},
    ),
    (
        "slow trainer that waits",
        ("trainer_bound", "compute"),
        {"signals": {"trainer_wait_ratio": 0.62}},
        {"signals": {"trainer_wait_ratio": 0.49}},
    ),
    (
        "slow trainer that waits",
        ("trainer_bound", "other"),
        {"signals": {"trainer_wait_ratio": 0.82}, "numbers": {"wait_ratio": 0.001}},
        {"signals": {"trainer_wait_ratio": 0.82}, "numbers": {"wait_ratio": 0.001}, "evidence": [BOTH_WAITS]},
    ),
    ("dead engines without a stall", ("trainer_bound", "compute"), {"signals": DOWN}, {"signals": ONE_UP}),
    (
        "wait in numbers differs",
        ("generator_bound", "kv_capacity"),
        {"signals": {"trainer_wait_ratio": 0.44}, "numbers": {"reported_wait_ratio": 0.33}},
        {"signals": {"trainer_wait_ratio": 0.44}, "numbers": {"reported_wait_ratio": 0.35}},
    ),
    (
        "wait in summary differs",
        ("reward_bound", "scoring"),
        {"signals": {"trainer_wait_ratio": 0.63}, "summary": WAITS},
        {"signals": {"trainer_wait_ratio": 0.97}, "summary": WAITS},
    ),
    (
        "full cache with room",
        ("generator_bound", "preemption"),
        {"signals": {"kv_cache_usage_ratio": 0.003}},
        {"signals": {"kv_cache_usage_ratio": 0.93}},
    ),
    (
        "slow scorer that idles",
        ("reward_bound", "scoring"),
        {"signals": {"scoring_busy_ratio": 0.02}},
        {"signals": {"scoring_busy_ratio": 0.94}},
    ),
    (
        "poor curriculum with gradients",
        ("curriculum_bound", "equal_rewards"),
        {"signals": {'zero_advantage_ratio{basis="completed"}': 0.12}},
        {"signals": {'zero_advantage_ratio{basis="completed"}': 0.5}},
    ),
    (
        "slow weight sync that is short",
        ("overhead_bound", "weight_sync"),
        {"signals": {"weight_sync_ratio": 0.02}},
        {"signals": {"weight_sync_ratio": 0.84}},
    ),
    (
        "more rollouts at quota",
        ("sandbox_bound", "tool_time"),
        {"signals": {'sandbox_quota_used_ratio{resource="sandboxes"}': 0.97}, "advice": MORE},
        {"signals": {'sandbox_quota_used_ratio{resource="sandboxes"}': 0.6}, "advice": MORE},
    ),
)


def broken(verdict: tuple[str, str], answer: dict[str, Any]) -> set[str]:
    """Rules that two minutes of this answer break."""
    walker = Walker()
    limiters = [dict(zip(("outcome", "cause", "share"), one, strict=True)) for one in answer.get("limiters", ())]
    shown = {
        "outcome": verdict[0], "cause": verdict[1] or None, "confidence": 0.54, "limiters": limiters,
        "summary": answer.get("summary", ""), "advice": answer.get("advice", ""), "numbers": answer.get("numbers", {}),
        "evidence": [{"text": text} for text in answer.get("evidence", ())],
    }  # fmt: skip
    facts = {"max_num_seqs": 32.0, **answer.get("facts", {})}
    for tick in range(25):
        walker.check(tick * 5.0, shown, answer.get("signals", {}), facts, answer.get("mode", "async"))
    return set(walker.found)


@pytest.mark.parametrize(("rule", "verdict", "contradicts", "agrees"), CASES, ids=lambda item: str(item)[:40])
def test_a_pair(rule: str, verdict: tuple[str, str], contradicts: dict[str, Any], agrees: dict[str, Any]) -> None:
    assert broken(verdict, contradicts) == {rule}
    assert broken(verdict, agrees) == set()


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == {rule.name for rule in RULES}


def test_what_needs_a_minute_is_not_found_before() -> None:
    walker = Walker()
    shown = {
        "outcome": "trainer_bound", "cause": None, "confidence": 0.5, "limiters": [], "summary": "", "advice": "",
        "numbers": {}, "evidence": [],
    }  # fmt: skip
    for at in (0.0, 30.0, 59.0, 60.0):
        walker.check(at, shown, DOWN, {}, "async")
    assert [at for at, _ in walker.found["dead engines without a stall"]] == [60.0]


def test_a_stated_wait_is_a_rounded_number() -> None:
    """49.8% reads 50%, and only half of a step or more contradicts a trainer that limits the run."""
    for exact, contradicts in ((0.498, False), (0.502, True)):
        walker = Walker()
        text = "The trainer waited 50% of the time in its last 2 steps (5% in the last ten)"
        verdict = {
            "outcome": "trainer_bound", "cause": "compute", "confidence": 0.3, "summary": "", "advice": "",
            "limiters": [], "numbers": {"wait_ratio": exact}, "evidence": [{"text": text, "signal": ""}],
        }  # fmt: skip
        walker.check(0.0, verdict, {"trainer_wait_ratio": 0.05}, {}, "async")
        assert ("slow trainer that waits" in walker.found) == contradicts


def test_a_second_wait_that_is_not_the_signal_explains_nothing() -> None:
    """The text must have the number of the card: 82% explains 82%, and no 62%."""
    for signal, contradicts in ((0.82, False), (0.62, True)):
        walker = Walker()
        item = {"text": BOTH_WAITS, "signal": "trainer_wait_ratio"}
        verdict = {
            "outcome": "balanced", "cause": None, "confidence": 0.9, "summary": "", "advice": "", "limiters": [],
            "numbers": {"wait_ratio": 0.0}, "evidence": [item],
        }  # fmt: skip
        walker.check(0.0, verdict, {"trainer_wait_ratio": signal}, {}, "async")
        assert ("balanced while it waits" in walker.found) == contradicts
