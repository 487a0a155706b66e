"""Signals with a memory: each step once, whatever is asked again, and the same after a restart at any point."""

from typing import Any

import pytest

from server.derive.deriver import Deriver, Emission
from server.signals.model import Answer, Fold, Signal, Unknown, Value, View

T0 = 1_000_000.0


def _remember(memory: Any, view: View) -> tuple[Any, Answer]:
    """Sum of the step times so far: [newest step, sum]."""
    number, total = memory or (-1, 0.0)
    for step in view.steps.rows(("trainer_step_seconds", ()), count=5):
        if step.number > number:
            number, total = step.number, total + step.values[("trainer_step_seconds", ())]
    return [number, total], [Value(total)]


def _signal(version: int = 1, **more: Any) -> Signal:
    given = {"compute": Fold(_remember), "hint": "", "version": version, **more}
    return Signal("total", "Total", "seconds", "trainer", "", ("trainer_step_seconds",), "step", **given)


def _deriver(signal: Signal) -> Deriver:
    return Deriver([signal], lambda target: 15.0)


def _step(deriver: Deriver, number: int) -> list[Emission]:
    return deriver.step("trainer", 0, number, T0 + number, "log", {("trainer_step_seconds", ()): float(number)})


def test_each_step_counts_once_whoever_asks_again() -> None:
    deriver = _deriver(_signal())
    for number in (1, 2, 3):
        _step(deriver, number)
        deriver.steps_now(T0 + 9)
    ((_, _, answer),) = _step(deriver, 4)
    assert answer == [Value(10.0)]


@pytest.mark.parametrize("died", [1, 3, 7])
def test_a_restart_changes_no_number(died: int) -> None:
    before, after = _deriver(_signal()), _deriver(_signal())
    for number in range(1, died + 1):
        _step(before, number)
    after.restore(before.states())
    for number in range(died + 1, 10):
        ((_, _, answer),) = _step(after, number)
    assert answer == [Value(45.0)]


def test_a_memory_of_another_version_begins_anew() -> None:
    before, after = _deriver(_signal()), _deriver(_signal(version=2))
    _step(before, 5)
    after.restore(before.states())
    ((_, _, answer),) = _step(after, 6)
    assert answer == [Value(6.0)]


def test_one_that_fails_keeps_what_it_knew() -> None:
    def fails(memory: Any, view: View) -> tuple[Any, Answer]:
        if view.now == T0 + 2:
            raise ZeroDivisionError
        return _remember(memory, view)

    deriver = _deriver(_signal(compute=Fold(fails)))
    _step(deriver, 1)
    ((_, _, answer),) = _step(deriver, 2)
    assert isinstance(answer, Unknown)
    ((_, _, answer),) = _step(deriver, 3)
    assert answer == [Value(6.0)]
