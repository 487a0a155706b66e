"""Ten simulated runs of the evaluation, and what it stands on: the engine's arithmetic, truth, and the feed."""

from dataclasses import replace

import pytest

from bench.verdict.cases import FAULTS, held_up, steady
from bench.verdict.config import Config
from bench.verdict.engine import Engine, Request
from bench.verdict.feed import Feed, ticks
from bench.verdict.sim import Sim
from bench.verdict.truth import RELIEFS, contend, judged, rate, truth


@pytest.mark.parametrize("seed", [0, 4, 14, 17, 20, 29, 31, 32, 40, 41])
def test_a_simulated_run(seed: int) -> None:
    """Of the seeds of tuning: the measured limiter is named, and without a source nobody is wrong and sure."""
    found = steady(seed)
    assert found.right, (found.said, str(found.truth))
    assert not found.misled, (found.without, str(found.truth))


def engine(**given: float) -> Engine:
    return Engine(slots=2, token_s=0.1, load_s=0.05, capacity=given.get("capacity", 1e9))


def test_two_requests_share_an_engine() -> None:
    """Alone 1 / 0.15 tokens/s, two of them 1 / 0.2 each: the first of 10 tokens ends after 2 s."""
    one = engine()
    one.submit(Request("a", left=10.0, context=0.0))
    one.submit(Request("b", left=30.0, context=0.0))
    one.submit(Request("c", left=5.0, context=0.0))
    assert (one.running, len(one.waiting), one.next()) == (2, 1, pytest.approx(2.0))
    one.advance(2.0)
    assert [request.owner for request in one.done()] == ["a"]
    one.admit()
    assert (one.running, one.tokens, one.next()) == (2, pytest.approx(20.0), pytest.approx(3.0))


def test_a_full_cache_throws_the_youngest_out() -> None:
    """100 + 100 tokens grow by 5 a second each in 240 of room: full after 4 s, and the second waits again."""
    one = engine(capacity=240.0)
    one.submit(Request("a", left=100.0, context=100.0))
    one.submit(Request("b", left=100.0, context=100.0))
    assert one.next() == pytest.approx(4.0)
    one.advance(4.0)
    one.squeeze()
    assert (one.running, one.preemptions, [r.owner for r in one.waiting]) == (1, 1, ["b"])
    assert one.held == pytest.approx(120.0) and one.waiting[0].context == pytest.approx(120.0)


PLAIN = Config(1, "plain", engines=1, slots=64, token_s=0.01, tokens=100.0, prompt=0.0, sigma=0.0, cap=32, batch=32,
               group=8, compute=4.0, publish=1.0, jitter=0.0, horizon=400.0)  # fmt: skip


def test_a_trainer_that_never_waits_sets_the_pace() -> None:
    """32 samples in 4 + 1 s are 6.4 a second; in 2 + 1 s they are 10.67, 1.67 times as many."""
    assert rate(Sim(PLAIN).run().rows) == pytest.approx(6.4, rel=0.01)
    found = truth(PLAIN)
    assert found.right == {"trainer_bound"} and found.gains["trainer"] == pytest.approx(5 / 3, rel=0.02)


def test_slow_tools_hold_a_run_back() -> None:
    """32 in flight for 1 + 19 s are 1.6 a second; the trainer waits three quarters of its step."""
    slow = PLAIN.changed(turns=2, tool=19.0)
    rows = Sim(slow).run().rows
    late = rows[len(rows) // 2 :]
    assert rate(rows) == pytest.approx(1.6, rel=0.1)
    waited = sum(row.values["trainer_wait_seconds"] for row in late)
    assert waited / sum(row.values["trainer_step_seconds"] for row in late) == pytest.approx(0.75, abs=0.06)
    assert truth(slow).top == "sandbox_bound"


@pytest.mark.parametrize("gains, right", [
    ({"trainer": 1.5, "tool": 1.2}, {"trainer_bound"}),
    ({"trainer": 1.5, "tool": 1.45}, {"trainer_bound", "sandbox_bound"}),
    ({"trainer": 1.15, "tool": 1.0}, {"trainer_bound", "balanced"}),
    ({"trainer": 1.05, "tool": 1.0}, {"balanced"}),
    ({"cap": 1.6, "tool": 1.3}, {"sandbox_bound", "orchestrator_bound"}),
    ({"zero": 1.6, "tool": 1.0}, {"balanced", "curriculum_bound"}),
])  # fmt: skip
def test_what_gains_most_is_right(gains: dict[str, float], right: set[str]) -> None:
    assert judged(PLAIN.changed(zero=0.4), gains).right == right


@pytest.mark.parametrize("given, gains, right", [
    ({"zero": 0.52}, {"zero": 2.1, "tool": 1.0}, {"balanced", "curriculum_bound"}),
    ({"zero": 0.6}, {"zero": 2.5, "tool": 1.0}, {"curriculum_bound"}),
    ({"zero": 0.52, "filtered": True}, {"zero": 2.1, "tool": 1.0}, {"curriculum_bound"}),
    ({"sync": True}, {"tail": 1.3}, {"balanced"}),
    ({"sync": True}, {"tail": 1.55}, {"balanced", "generator_bound"}),
    ({"sync": True}, {"tail": 1.7}, {"generator_bound"}),
])  # fmt: skip
def test_near_a_convention_either_word_is_right(
    given: dict[str, float], gains: dict[str, float], right: set[str]
) -> None:
    assert judged(PLAIN.changed(**given), gains).right == right


def test_what_never_did_anything_gains_nothing() -> None:
    """The cache of it is endless, and four batches in the queue are never reached: the same to the last event."""
    free = PLAIN.changed(bound=400.0)
    base = Sim(free).run()
    assert not base.held_once and Sim(PLAIN).run().held_once
    for name in ("cache", "gate"):
        assert rate(Sim(RELIEFS[name][1](free)).run().rows) == rate(base.rows)
        assert truth(free).gains[name] == 1.0


def test_a_fault_holds_the_run_up_from_when_it_is_felt() -> None:
    """Slow steps behind a full queue: frozen at rest, the engine is first asked when a batch is taken."""
    rest = PLAIN.changed(compute=40.0, page=5.0, horizon=600.0)
    held = [held_up(Sim(replace(rest, fault=(300.0, fault))).run(), 300.0, fault) for fault in FAULTS]
    free = Sim(rest).run()
    asked = next(page.at for page in free.pages if page.at >= 300.0 and page.engines[0][0])
    assert dict(zip(FAULTS, held, strict=True))["frozen"] == asked > 305.0
    ends = [row.end for row in free.rows]
    # A hung trainer ends the step it is in; without engines two batches that wait are trained, too.
    step = next(n for n, end in enumerate(ends) if end >= 300.0)
    assert held[FAULTS.index("hung")] == pytest.approx(ends[step])
    assert held[FAULTS.index("killed")] == pytest.approx(ends[step + 2])


def test_what_contends_is_measured_again() -> None:
    """Clear where one outcome gains half as much again, alone; else whatever gains half as much by its logarithm."""
    assert contend(PLAIN, {"trainer": 1.8, "tool": 1.1, "decode": 1.2}) == []
    assert contend(PLAIN, {"trainer": 1.4, "tool": 1.1, "decode": 1.1}) == ["trainer"]
    assert contend(PLAIN, {"trainer": 1.8, "tool": 1.1, "decode": 1.4}) == ["trainer", "decode"]
    assert contend(PLAIN, {"trainer": 1.03, "tool": 1.0}) == []
    assert contend(PLAIN, {"cap": 1.8, "tool": 1.7}) == ["cap", "tool"]


def test_what_is_learned_is_what_is_to_be_expected() -> None:
    """A third of the groups without a gradient: of 32 samples 21.3 count in every step."""
    rows = Sim(PLAIN.changed(zero=1 / 3)).run().rows
    assert {round(row.useful, 2) for row in rows} == {21.33}


def test_rows_come_late_and_a_missing_source_tells_nothing() -> None:
    """A step of 5 s that ends at 5.x s and is told 20 s later is not known before."""
    late = PLAIN.changed(lag=20.0, horizon=60.0)
    sim, feed = Sim(late).run(), Feed(late, "queue")
    for told in feed.play(sim.rows, sim.pages):
        known = feed.deriver.book.newest("trainer")
        assert (known is not None) == (told.at >= sim.rows[0].end + 20.0)
    assert "queue_samples" not in feed.deriver.gauges and "generator_requests_running" in feed.deriver.gauges


def test_two_hundred_ticks_at_most() -> None:
    assert len(ticks(PLAIN)) == 80 and ticks(PLAIN.changed(horizon=20_000.0))[:2] == [100.0, 200.0]
