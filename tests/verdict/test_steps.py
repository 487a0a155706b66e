"""The trainer's own numbers of the present: after a change, at the start, and where it waits and holds at two times."""

from dataclasses import replace

import pytest

from server.signals.aggregates import STEP_STALE_FACTOR, STEP_STALE_SECONDS
from server.signals.window import Step
from server.verdict.rules import judge
from server.verdict.steps import Present, open_since, present
from server.verdict.thresholds import LEAST_LIMIT_SECONDS, LIMIT
from tests.verdict.support import HEALTHY, NOW, seen, steps

HELD = {'generation_held_ratio{by="backpressure"}': 0.12}


def rows(*told: tuple[float, float, float]) -> list[Step]:
    """(step, wait, held) of each, seconds."""
    names = ("trainer_step_seconds", "trainer_wait_seconds", "backpressure_seconds")
    return [Step("trainer", 1, n, NOW - 10 + n, {(name, ()): x for name, x in zip(names, one, strict=True)})
            for n, one in enumerate(told)]  # fmt: skip


def test_a_slower_trainer_is_seen_by_what_it_no_longer_waits() -> None:
    """Eight steps of 30 s that wait 12, two of 120 s held for 90: 8.5 x 48 / 120 = 3.4 samples/s, held 75 %."""
    found = present(
        seen(HEALTHY | HELD | {"trainer_step_seconds": 48.0}, last=rows(*[(30, 12, 0)] * 8, *[(120, 0, 90)] * 2))
    )
    assert (found.steps, found.step, found.hold_ratio) == (2, 120.0, 0.75)
    assert found.trained == pytest.approx(3.4) and found.capacity == pytest.approx(3.4)
    assert found.arrivals == pytest.approx(8.6 + 3.4 - 8.5)


def test_a_queue_that_runs_full_and_empty_is_no_other_run() -> None:
    """Held in the last two of ten steps, and never waited: the hold of all ten counts."""
    found = present(seen(HEALTHY | HELD, last=rows(*[(30, 1, 0)] * 8, *[(30, 1, 25)] * 2)))
    assert (found.steps, found.hold_ratio) == (10, 0.12)


def opened(queue: float, since: float, *told: tuple[float, float, float], of: str = "backpressure_seconds") -> Present:
    """With so many samples of a batch of 256 in the queue, so many seconds after the last step's end (NOW - 1)."""
    last = rows(*told)
    for row in last:
        row.values[(of, ())] = row.values.pop(("backpressure_seconds", ()))
    return present(seen(HEALTHY | {"queue_samples_now": queue}, now=NOW - 1 + since, last=last, batch_samples=256.0))


def test_the_open_step_tells_of_a_wait_before_its_row_does() -> None:
    """Ten steps of 30 s that wait 3, work 27; now 90 s without a batch: 63 of them waited. 50 s may be chance."""
    calm = [(30.0, 3.0, 0.0)] * 10
    found = opened(100.0, 90.0, *calm)
    assert (found.steps, found.wait, found.step) == (1, pytest.approx(0.7), 90.0)
    # 8.5 samples/s x 30 s are 255 a step: of 90 s they are 2.83, of the 27 it works 9.44.
    assert (found.trained, found.capacity) == (pytest.approx(2.833, abs=0.001), pytest.approx(9.444, abs=0.001))
    assert opened(100.0, 50.0, *calm).wait == 0.06
    # A second one need not be as long.
    assert opened(100.0, 50.0, *calm[1:], (60.0, 33.0, 0.0)).steps == 2


def test_an_open_step_that_has_its_batch_or_may_have_none_tells_of_no_wait() -> None:
    calm = [(30.0, 3.0, 0.0)] * 10
    assert opened(300.0, 90.0, *calm).wait == 0.06
    gated = [(30.0, 3.0, 6.0)] * 10
    assert opened(100.0, 90.0, *gated, of="dispatch_gate_wait_seconds").wait == 0.06
    assert opened(100.0, 90.0, *gated).steps == 1


def test_a_batch_in_the_queue_ends_a_wait_at_its_second_step() -> None:
    """Nine steps that wait half of their time, one that does not, and now a batch waits for the trainer."""
    before = [(60.0, 30.0, 0.0)] * 9
    assert opened(300.0, 40.0, *before, (60.0, 0.0, 0.0)).wait == pytest.approx(0.0)
    assert opened(100.0, 40.0, *before, (60.0, 0.0, 0.0)).wait == 0.06


def test_work_that_grew_ends_a_wait_that_was_shorter() -> None:
    """Nine steps wait 12 of 30 s, one waits 12 and works 72; the next has its batch, and worked 23 s (1.25 x 18) too.

    54 s more than the usual 18 are no longer waited for 12: 255 samples in 72 s are 3.54 a second, and 8.6 arrive.
    """
    told = [*[(30.0, 12.0, 0.0)] * 9, (84.0, 12.0, 0.0)]
    found = opened(300.0, 23.0, *told)
    assert (found.steps, found.wait, found.step, found.arrivals) == (1, 0.0, 72.0, 8.6)
    assert found.capacity == pytest.approx(3.542, abs=0.001)
    assert (opened(300.0, 22.0, *told).steps, opened(100.0, 23.0, *told).steps) == (10, 10)


def test_what_was_found_to_be_of_another_time_stays_so() -> None:
    """The sixth of ten is of both times, four are kept; once but two of before are left no difference would show."""
    found = present(seen(HEALTHY, last=rows(*[(30, 12, 0)] * 5, *[(120, 0, 0)] * 5)))
    assert (found.steps, found.first) == (5, (1, 6))
    late = seen(HEALTHY, last=rows(*[(30, 12, 0)] * 2, *[(120, 0, 0)] * 8))
    assert (present(late).steps, present(replace(late, first=(1, 3))).steps) == (10, 7)
    assert present(replace(late, first=(0, 3))).steps == 10, "of a life before"


def test_what_waited_before_it_was_held_is_no_gate() -> None:
    """Ten steps: five wait half of their time, five are held for half of it, none does both."""
    apart = present(seen(HEALTHY | HELD, last=rows(*[(30, 15, 0), (30, 0, 15)] * 5)))
    both = present(seen(HEALTHY | HELD, last=rows(*[(30, 15, 15), (30, 0, 0)] * 5)))
    assert (apart.gated, both.gated) == (0.0, pytest.approx(0.25))


def test_the_first_step_fills_the_pipeline() -> None:
    """Five steps are all there were; the first waited 80 %, the others 5: four of them count."""
    found = present(seen(HEALTHY | {"trainer_wait_ratio": 0.2}, last=steps(0.8, 0.05, 0.05, 0.05, 0.05)))
    assert found.steps == 4 and found.wait == pytest.approx(0.05)


def test_a_first_step_like_the_others_counts() -> None:
    assert present(seen(HEALTHY, last=steps(0.2, 0.05, 0.05, 0.1, 0.05))).wait == 0.06


def test_the_open_step_is_held_against_what_the_stall_signal_is() -> None:
    """A stall of 0.1 is 180 s of steps of 30 s, and 720 s of steps of 20 minutes."""
    assert (LEAST_LIMIT_SECONDS, LIMIT) == (STEP_STALE_SECONDS, STEP_STALE_FACTOR)
    short = open_since(seen(HEALTHY, {"trainer_stall_ratio": 0.1}, last=steps(*[0.1] * 10)))
    long = open_since(seen(HEALTHY, {"trainer_stall_ratio": 0.1}, last=steps(*[0.1] * 10, seconds=1200.0)))
    assert short is not None and (short.after, short.seconds, short.usual, short.times) == (10, 180.0, 30.0, 6.0)
    assert long is not None and (long.seconds, long.late) == (720.0, False)
    # A row of three steps is one of 90 s; without rows their mean is what is known.
    rare = [replace(row, number=3 * row.number, ts=NOW + 90 * row.number) for row in steps(*[0.1] * 4)]
    found = open_since(seen(HEALTHY, {"trainer_stall_ratio": 0.1}, last=rare))
    assert found is not None and (found.usual, found.after, found.late) == (90.0, 12, False)
    alone = open_since(seen(HEALTHY, {"trainer_stall_ratio": 0.1}))
    assert alone is not None and (alone.usual, alone.after, alone.late) == (30.0, None, True)
    assert open_since(seen(HEALTHY, {"trainer_stall_ratio": None}, last=steps(*[0.1] * 10))) is None


@pytest.mark.parametrize(
    "usual, open_for, idle, confidence",
    [
        # Late from 3 x 10 s on. 45 s without a request are more than three usual steps: 0.95 x 0.75.
        (10.0, 46.0, 45.0, 0.7125),
        # Late from 3 x 20 s on. 45 s are fewer than three usual steps: 0.95 x 0.5.
        (20.0, 66.0, 45.0, 0.475),
        # 35 s without a request are below 40 s: no stall.
        (10.0, 46.0, 35.0, None),
    ],
)
def test_a_late_step_without_any_request_is_a_stall(
    usual: float, open_for: float, idle: float, confidence: float | None
) -> None:
    stall = {"trainer_stall_ratio": open_for / LEAST_LIMIT_SECONDS, "trainer_step_seconds": usual}
    window = [(NOW - age, {"requests:running": 3.0 if age > idle else 0.0}) for age in (60.0, 45.0, 35.0, 20.0, 5.0)]
    found = judge(replace(seen(HEALTHY, stall, last=steps(*[0.3] * 10, seconds=usual)), instants=window))
    if confidence is None:
        assert found.outcome != "stalled"
    else:
        assert (found.outcome, found.cause) == ("stalled", "no_progress")
        assert found.confidence == pytest.approx(confidence, abs=0.006)


@pytest.mark.parametrize(
    "share, groups, outcome",
    [(0.5, 6.0, "trainer_bound"), (None, None, "trainer_bound"), (0.3, 640.0, "trainer_bound")],
)
def test_a_verdict_is_not_believed_while_half_of_the_groups_may_have_no_gradient(
    share: float | None, groups: float | None, outcome: str
) -> None:
    """3 of 6 groups are 19 to 81 %, and no groups are anything: below 0.5. 30 % of 640 groups exclude a half."""
    gradient: dict[str, float | None] = {"zero_advantage*": None}
    if share is not None:
        gradient |= {'zero_advantage_ratio{basis="completed"}': share}
        gradient |= {'zero_advantage_groups{basis="completed"}': groups}
    ahead = {"trainer_wait_ratio": 0.0, "queue_arrivals_samples_per_second": 18.0}
    found = judge(seen(HEALTHY, gradient, ahead, last=steps(*[0.0] * 10), group_size=4.0))
    assert found.outcome == outcome
    assert (found.confidence < 0.5) is (groups != 640.0)


def test_a_wait_in_the_open_step_alone_is_not_believed() -> None:
    """Nine steps without a wait, then an open step that has waited for 99 s: 0.95 x 0.5 at most."""
    queue = {"queue_samples_now": 10.0, "trainer_wait_ratio": 0.0}
    found = judge(seen(HEALTHY, queue, now=NOW + 129.0, last=steps(*[0.0] * 10), batch_samples=256.0))
    assert found.cause == "concurrency_cap" and found.confidence <= 0.475
