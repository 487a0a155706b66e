"""What rules see: values, gaps and ends are three different things."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Labels
from server.alerts.inputs import IncreaseTotals, RunFrame, SignalState, increase
from server.alerts.model import Condition
from server.signals.window import Gauge, StepBook
from tests.signals.support import NOW, book, gauge, health

STAT: Labels = (("stat", "mean"),)


def frame(**more: Any) -> RunFrame:
    given_ = {
        "now": NOW, "run": "r", "lifecycle": "running", "replayed": False, "signals": {}, "stale": lambda *_: "",
        "gauges": {}, "health": {}, "steps": StepBook(), "shape": 1,
    }  # fmt: skip
    return RunFrame(**{**given_, **more})


def on(name: str, source: str = "signal", **more: Any) -> Condition:
    return Condition("threshold", source, name, **more)  # type: ignore[arg-type]


def rows(found: Any) -> dict[Labels, Any]:
    """Series -> value, or the reason of its gap."""
    if found is None:
        return {}
    return {labels: found.gaps.get(at, found.values[at]) for at, labels in enumerate(found.labels)}


def test_signals_are_values_gaps_or_gone() -> None:
    signals = {
        "a": {STAT: SignalState(NOW, 3.0), (("stat", "max"),): SignalState(NOW, None, "no longer reported", True)},
        "b": {(): SignalState(NOW, None, "log it")},
        "c": {(): SignalState(NOW, None, "log it"), STAT: SignalState(NOW, 1.0)},
    }
    found = frame(signals=signals)
    assert rows(found.table(on("a"))) == {STAT: 3.0}
    assert rows(found.table(on("b"))) == {(): "log it"}
    assert rows(found.table(on("c"))) == {STAT: 1.0}  # the row without labels only said why
    assert found.table(on("nope")) is None


def test_an_answer_that_is_too_old_is_a_gap() -> None:
    found = frame(
        signals={"a": {(): SignalState(NOW - 9, 3.0)}}, stale=lambda name, ts: f"{name} since {NOW - ts:.0f} s"
    )
    assert rows(found.table(on("a"))) == {(): "a since 9 s"}


def by_key(*gauges: Gauge) -> dict[str, dict[tuple[str, Labels], Gauge]]:
    found: dict[str, dict[tuple[str, Labels], Gauge]] = {}
    for one in gauges:
        found.setdefault(one.metric, {})[(one.target, one.labels)] = one
    return found


UP, DOWN = health("e0", "generator", 1.0), health("e0", "generator", 99.0, up=False)
E0 = (("target", "e0"),)


def test_a_series_that_fell_silent_is_a_gap_while_its_target_is_down_and_gone_while_it_is_up() -> None:
    old = by_key(gauge("m", 5.0, age=16.0))
    assert rows(frame(gauges=old, health={"e0": DOWN}).table(on("m", "metric"))) == {E0: "target e0 does not answer"}
    ended = frame(gauges=old, health={"e0": UP}).table(on("m", "metric"))
    assert ended is not None and ended.labels == []  # over, which is something else than no source
    stopped = health("e0", "generator", 16.0)  # up when we last looked, which was before the series fell silent
    assert rows(frame(gauges=old, health={"e0": stopped}).table(on("m", "metric"))) == {E0: "target e0 does not answer"}
    assert rows(frame(gauges=by_key(gauge("m", 5.0, age=15.0)), health={"e0": DOWN}).table(on("m", "metric"))) == {
        E0: 5.0
    }


def test_a_metrics_labels_are_its_own_and_the_target_sorted() -> None:
    found = frame(gauges=by_key(gauge("m", 5.0, labels=(("zone", "a"),), target="e1")))
    assert list(rows(found.table(on("m", "metric")))) == [(("target", "e1"), ("zone", "a"))]


def test_equal_shapes_mean_equal_labels() -> None:
    """One row leaves as another returns: as many rows, other labels."""
    first = by_key(gauge("m", 1.0, target="e0"), gauge("m", 1.0, target="e1", age=99))
    second = by_key(gauge("m", 1.0, target="e0", age=99), gauge("m", 1.0, target="e1"))
    both = {"e0": UP, "e1": health("e1", "generator", 1.0)}
    one, two = (frame(gauges=g, health=both).table(on("m", "metric")) for g in (first, second))
    assert one is not None and two is not None
    assert len(one.values) == len(two.values) == 1
    assert one.shape != two.shape


def test_targets_are_rows_with_their_kind() -> None:
    found = frame(health={"e0": DOWN, "e1": health("e1", "generator", 1.0)})
    assert rows(found.table(on("target_up"))) == {
        (("kind", "vllm"), ("target", "e0")): 0.0,
        (("kind", "vllm"), ("target", "e1")): 1.0,
    }


def test_a_step_metric_is_its_newest_step() -> None:
    steps = book([{"gradient_norm": 0.5}, {"gradient_norm": 0.7}, {"loss_mean": 1.0}])
    assert rows(frame(steps=steps).table(on("gradient_norm", "metric"))) == {(): 0.7}


@pytest.mark.parametrize(
    ("values", "window", "grown"),
    [
        ((10, 12, 15), 10, 5.0),
        ((10, 12, 15), 5, 3.0),
        ((10, 12, 2), 10, 4.0),  # 2, then a reset: the new value is the growth
        ((10, 10, 10), 10, 0.0),
        ((10, 12, 15), 11, math.nan),  # younger than the window
    ],
)
def test_growth_within_a_window(values: tuple[float, ...], window: float, grown: float) -> None:
    assert increase(gauge("m", *values), NOW - window) == pytest.approx(grown, nan_ok=True)


def test_a_young_counter_is_a_gap_not_zero() -> None:
    condition = on("m", "metric", of="increase", window=120.0)
    found = frame(gauges=by_key(gauge("m", 1.0, 1.0))).table(condition)
    assert rows(found) == {E0: "younger than the window"}


@given(st.lists(st.integers(0, 50), min_size=2, max_size=300), st.sampled_from([60.0, 300.0, 3600.0]))
def test_a_counters_thinned_past_is_right_to_a_hundredth_of_its_window(grown: list[int], window: float) -> None:
    """Against the whole past: never more than what grew in the window and one thinned interval before it."""
    totals, past, total = IncreaseTotals(), [], 0.0
    for at, amount in enumerate(grown):
        total += amount
        past.append((at * 5.0, total))
        totals.add(at * 5.0, total, window)
    now = past[-1][0]
    slack = window / 100 + 5.0

    def at_or_before(t: float) -> float:
        return max((value for ts, value in past if ts <= t), default=past[0][1])

    found = totals.increase(now, total, window)
    assert total - at_or_before(now - window) <= found + 1e-9 or now < window
    assert found <= total - at_or_before(now - window - slack) + 1e-9
