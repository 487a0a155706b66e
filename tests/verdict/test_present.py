"""The trainer's own numbers of the present: after a change, at the start, and where it waits and holds at two times."""

import pytest

from server.signals._window import Step
from server.verdict.present import present
from tests.verdict.support import HEALTHY, NOW, seen, steps

HELD = {'generation_held_ratio{by="backpressure"}': 0.12}


def rows(*told: tuple[float, float, float]) -> list[Step]:
    """(step, wait, held) of each, seconds."""
    names = ("trainer_step_seconds", "trainer_wait_seconds", "backpressure_seconds")
    return [Step("trainer", 1, n, NOW - 10 + n, {(name, ()): x for name, x in zip(names, one, strict=True)})
            for n, one in enumerate(told)]  # fmt: skip


def test_a_slower_trainer_is_seen_by_what_is_held() -> None:
    """Eight steps of 30 s without a hold, two of 120 s held for 90: 8.5 x 48 / 120 = 3.4 samples/s, held 75 %."""
    found = present(
        seen(HEALTHY | HELD | {"trainer_step_seconds": 48.0}, last=rows(*[(30, 1, 0)] * 8, *[(120, 0, 90)] * 2))
    )
    assert (found.steps, found.step, found.held) == (2, 120.0, 0.75)
    assert found.trained == pytest.approx(3.4) and found.capacity == pytest.approx(3.4)
    assert found.arrivals == pytest.approx(8.6 + 3.4 - 8.5)


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
