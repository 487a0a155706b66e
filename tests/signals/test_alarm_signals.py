"""Signals that exist for alerts: stalls, frozen engines, broken gradients, discards, trust. Numbers by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from server.signals.generator import generator_frozen as FROZEN
from server.signals.generator import generator_preemption_ratio as PREEMPTIONS
from server.signals.model import Answer, NotApplicable, Unknown, View
from server.signals.rollouts import failure_ratio as FAILURES
from server.signals.run import trusted_targets_ratio as TRUSTED
from server.signals.staleness import discarded_rollout_ratio as DISCARDED
from server.signals.staleness import staleness_bound_ratio as BOUND
from server.signals.trainer import trainer_stall_ratio as STALL
from server.signals.training_health import gradient_nonfinite_steps as NONFINITE
from server.signals.weights import weight_sync_ratio as SYNC
from server.signals.window import Gauge
from tests.signals.support import NOW, add, book, gauge, health, view


def values(answer: Answer) -> dict[tuple[tuple[str, str], ...], float]:
    assert isinstance(answer, (list, tuple)), answer
    return {value.labels: value.value for value in answer}


def why(answer: Answer) -> str:
    assert isinstance(answer, (Unknown, NotApplicable)), answer
    return answer.why


def aged(seconds: float, step: float):  # type: ignore[no-untyped-def]
    """Ten steps of `step` seconds, the newest `seconds` ago."""
    steps = book([])
    for number in range(1, 11):
        ts = NOW - seconds - (10 - number) * step
        steps.put("trainer", 1, number, ts, {("trainer_step_seconds", ()): step})
    return steps


def test_a_stall_is_measured_in_half_hours_for_short_steps() -> None:
    assert values(STALL.compute(view(steps=aged(900.0, 30.0)))) == {(): 0.5}
    assert values(STALL.compute(view(steps=aged(1800.0, 30.0)))) == {(): 1.0}


def test_a_stall_is_measured_in_six_steps_for_long_ones() -> None:
    assert values(STALL.compute(view(steps=aged(3600.0, 1200.0)))) == {(): 0.5}


def test_a_run_that_is_over_does_not_stall() -> None:
    answer = STALL.compute(view(steps=aged(9e5, 30.0), lifecycle="finished"))
    assert isinstance(answer, NotApplicable) and why(answer) == "the run is finished"
    assert isinstance(STALL.compute(view(lifecycle="starting")), Unknown)


E0, E1 = (("target", "e0"),), (("target", "e1"),)


def frozen(*targets: str, tokens: list[float], running: list[float], **more: float):  # type: ignore[no-untyped-def]
    series = []
    for target in targets:
        series.append(gauge("generator_tokens_total", *tokens, target=target))
        series.append(gauge("generator_requests_running", *running, target=target))
        series += [gauge(name, value, target=target) for name, value in more.items()]
    return series


STILL = [100.0] * 13 + [200.0] * 13  # moved 60 s ago, then stood
BUSY = [4.0] * 26


def test_an_engine_that_runs_requests_without_a_token_for_a_minute_is_frozen() -> None:
    moving = frozen("e1", tokens=[float(n) for n in range(26)], running=BUSY)
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=BUSY), *moving))) == {E0: 1.0, E1: 0.0}


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        # Hung for fifteen minutes. At 60 s it stood still for 55; the 15 around paused pages do not count.
        (lambda at: 0.0, [0.0, *[1.0] * 14]),
        # Works but for the ten seconds of every update.
        (lambda at: float(at), [0.0] * 15),
    ],
)
def test_an_engine_stays_frozen_over_weight_updates(moves: Callable[[int], float], expected: list[float]) -> None:
    """A page every 5 s for 15 minutes; each minute a weight update pauses the engine for 10 s."""
    tokens, running, paused = (
        Gauge("e0", metric, (), carry=15.0)
        for metric in ("generator_tokens_total", "generator_requests_running", "generator_paused")
    )
    found = []
    for at in range(5, 905, 5):
        held = at % 60 in (30, 35)
        tokens.add(NOW + at, moves(at - 5 if held else at))
        running.add(NOW + at, 4.0)
        paused.add(NOW + at, float(held))
        if at % 60 == 0:
            by_metric = {one.metric: [one] for one in (tokens, running, paused)}
            found.append(values(FROZEN.compute(View(NOW + at, "async", "running", {}, by_metric)))[E0])
    assert found == expected


def test_idle_paused_and_young_engines_are_not_frozen() -> None:
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=[0.0] * 26)))) == {E0: 0.0}
    # Idle until 30 s ago: the counter stood still for want of work.
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=[0.0] * 20 + [4.0] * 6)))) == {E0: 0.0}
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=BUSY, generator_asleep=1.0)))) == {E0: 0.0}
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=BUSY, generator_paused=1.0)))) == {E0: 0.0}
    assert values(FROZEN.compute(view(*frozen("e0", tokens=STILL, running=BUSY, generator_paused=0.0)))) == {E0: 1.0}
    assert values(FROZEN.compute(view(*frozen("e0", tokens=[7.0] * 6, running=[4.0] * 6)))) == {E0: 0.0}


def test_nobody_freezes_where_nobody_counts() -> None:
    assert "no engine reports both" in why(FROZEN.compute(view(gauge("generator_requests_running", 3))))


def test_preemptions_are_per_finished_request() -> None:
    found = view(gauge("generator_preemptions_total", 10, 13), gauge("generator_requests_finished_total", 100, 112))
    assert values(PREEMPTIONS.compute(found)) == {(): 0.25}
    idle = view(gauge("generator_preemptions_total", 10, 10), gauge("generator_requests_finished_total", 100, 100))
    assert "no request finished" in why(PREEMPTIONS.compute(idle))


@pytest.mark.parametrize(
    ("preempted", "finished", "usage", "expected"),
    [
        # Recorded pages of an engine that TRL pauses at each weight update, 32 requests at most: 160 of 86 requests.
        (
            (101, 133, 165, 229, 229, 261),
            (271, 285, 301, 323, 351, 383),
            (0.008, 0.0101, 0.0106, 0.0075, 0.01, 0.0091),
            0,
        ),
        # Recorded pages of an engine with 24 blocks: 96 - 16 preemptions of 46 - 13 requests.
        ((16, 46, 60, 73, 96), (13, 24, 32, 38, 46), (0.9565, 1.0, 1.0, 0.9565, 1.0), 80 / 33),
        # 30 of a pause at 40 %, then 8 next to a full page.
        ((0, 30, 30, 38), (0, 10, 10, 20), (0.4, 0.0, 0.7, 0.97), 8 / 20),
    ],
)
def test_preemptions_count_where_the_cache_is_nearly_full(
    preempted: tuple[float, ...], finished: tuple[float, ...], usage: tuple[float, ...], expected: float
) -> None:
    pages = (
        gauge("generator_preemptions_total", *preempted), gauge("generator_requests_finished_total", *finished),
        gauge("kv_cache_usage_ratio", *usage),
    )  # fmt: skip
    assert values(PREEMPTIONS.compute(view(*pages))) == {(): pytest.approx(expected)}


def test_preemptions_of_engines_that_finish_nothing_are_per_running_request() -> None:
    stuck = (gauge("generator_preemptions_total", 10, 16), gauge("generator_requests_finished_total", 100, 100))
    assert values(PREEMPTIONS.compute(view(*stuck, gauge("generator_requests_running", 4)))) == {(): 1.5}


def test_staleness_is_measured_against_the_runs_bound() -> None:
    rows = [{"staleness_versions_max": value} for value in (2.0, 9.0, 4.0)]
    assert values(BOUND.compute(view(steps=book(rows), max_staleness_versions=6.0))) == {(): 1.5}
    assert isinstance(BOUND.compute(view(steps=book(rows))), Unknown)
    # In a synchronous run there is none, unless the trainer reports it nevertheless.
    assert isinstance(BOUND.compute(view(mode="sync_colocated", max_staleness_versions=6.0)), NotApplicable)
    reported = view(steps=book(rows), mode="sync_colocated", max_staleness_versions=6.0)
    assert values(BOUND.compute(reported)) == {(): 1.5}


def test_weight_sync_is_a_ratio_of_sums() -> None:
    rows = [{"trainer_step_seconds": s, "trainer_weight_sync_seconds": w} for s, w in ((10, 5), (100, 10), (10, 5))]
    assert values(SYNC.compute(view(steps=book(rows)))) == {(): pytest.approx(20 / 120)}


def test_a_row_that_stands_for_ten_steps_is_no_stall() -> None:
    """TRL logs every logging_steps: rows 50 min apart, each of steps of 5 min."""
    steps = book([])
    for row in range(1, 7):
        steps.put("trainer", 1, 10 * row, NOW - 2900 - (6 - row) * 3000, {("trainer_step_seconds", ()): 300.0})
    assert values(STALL.compute(view(steps=steps))) == {(): pytest.approx(2900 / 18000)}
    bare = book([])
    for row in range(1, 5):
        bare.put("trainer", 1, row, NOW - 2900 - (4 - row) * 2400, {("reward_mean", ()): 0.5})
    assert values(STALL.compute(view(steps=bare))) == {(): pytest.approx(2900 / 14400)}


def test_nobody_stalls_whom_we_do_not_see() -> None:
    down = health("trainer", "trainer", 1900.0, up=False)
    assert "does not answer" in why(STALL.compute(view(steps=aged(3600.0, 30.0), targets=(down,))))
    seen = health("trainer", "trainer", 1.0)
    assert values(STALL.compute(view(steps=aged(3600.0, 30.0), targets=(seen,)))) == {(): 2.0}


def test_a_stall_is_counted_from_the_runs_new_beginning_and_from_when_a_step_was_met() -> None:
    resumed = replace(view(steps=aged(36_000.0, 30.0)), running_since=NOW - 900)
    assert values(STALL.compute(resumed)) == {(): 0.5}
    behind = replace(view(steps=aged(3600.0, 30.0)), step_met=NOW - 18)  # the trainer's clock is an hour behind
    assert values(STALL.compute(behind)) == {(): 0.01}


def test_one_broken_gradient_is_evidence_enough() -> None:
    assert values(NONFINITE.compute(view(steps=book([{"gradient_nonfinite": 1.0}])))) == {(): 1.0}
    assert "1 of the 3 steps" in why(NONFINITE.compute(view(steps=book([{"gradient_nonfinite": 0.0}]))))


def test_broken_gradients_are_counted_within_the_window() -> None:
    rows = [{"gradient_nonfinite": float(n in (1, 5, 6))} for n in range(12)]  # step 1 has left the window of ten
    assert values(NONFINITE.compute(view(steps=book(rows)))) == {(): 2.0}


def test_failures_say_of_what() -> None:
    rows = [{"tool_failure_ratio": 0.3, "rollout_error_ratio": 0.1}] * 3
    assert values(FAILURES.compute(view(steps=book(rows)))) == {
        (("of", "rollouts"),): pytest.approx(0.1),
        (("of", "tool_calls"),): pytest.approx(0.3),
    }
    two = book([{"tool_failure_ratio": 0.3}] * 2)
    assert why(FAILURES.compute(view(steps=two))).startswith("2 of the 3 steps")


def test_discards_come_from_the_trainable_share_or_from_drops() -> None:
    assert values(DISCARDED.compute(view(steps=book([{"trainable_ratio": 0.4}] * 3)))) == {(): pytest.approx(0.6)}
    rows = [{"stale_dropped_rollouts": 10.0, "trainer_samples": 30.0}] * 3
    assert values(DISCARDED.compute(view(steps=book(rows)))) == {(): 0.25}
    steps = book([{"trainer_step_seconds": 1.0}] * 3)
    add(steps, [{"stale_dropped_rollouts": 0.0, "trainer_samples": 0.0}] * 3, "trainer")
    assert values(DISCARDED.compute(view(steps=steps))) == {(): 0.0}


def test_trust_is_a_share_per_actor() -> None:
    targets = (
        health("e0", "generator", 2.0),
        health("e1", "generator", 15.0),
        health("e2", "generator", 16.0),  # beyond three intervals
        health("e3", "generator", 1.0, complete=False),
        health("t", "trainer", 1.0),
        structs.replace(health("beat", "trainer", None), collector="heartbeat"),  # gives no numbers
    )
    assert values(TRUSTED.compute(view(targets=targets))) == {
        (("actor", "generator"),): 0.5,
        (("actor", "trainer"),): 1.0,
    }
    assert isinstance(TRUSTED.compute(view()), Unknown)
