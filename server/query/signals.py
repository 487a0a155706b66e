"""A signal's newest stored point as readers see it: its state by the bands, and when it is no value any more."""

from collections.abc import Mapping

from collectors.model import Labels
from server import signals
from server.query.names import format_name
from server.query.run_state import RunState
from server.query.types import SignalInfo, SignalNow, SignalState
from server.signals.model import Counter, Signal
from server.signals.step_windows import stale_seconds
from server.store.types import LatestRow, PointState, RunRow

# A tick's values are 5 s old; after a minute no collector runs.
TICK_STALE_SECONDS = 60.0

ITEMS: Mapping[str, Signal | Counter] = {item.name: item for item in signals.load()}
"""Every signal and counter by name, in the order of the README."""

Rows = list[tuple[Labels, LatestRow]]


def info(item: Signal | Counter) -> SignalInfo:
    """What it is: constant."""
    if isinstance(item, Counter):
        does = "adds up" if item.of == "signal" else "counts"
        hint = f"{does} {item.metric}, which nobody reports yet"
        return SignalInfo(
            item.name, item.title, item.unit, item.help, hint, item.actor, inputs=(item.metric,), cadence="counter"
        )
    bands = (item.watch, item.critical, item.higher_is_worse)
    return SignalInfo(
        item.name, item.title, item.unit, item.help, item.hint, item.actor, *bands, item.inputs, item.cadence
    )


INFOS: Mapping[str, SignalInfo] = {name: info(item) for name, item in ITEMS.items()}
"""What each of them is."""


def step_stale_seconds(by_signal: Mapping[str, Rows]) -> float:
    """How old a run's newest step may be, by how long its steps take."""
    steps = by_signal.get("trainer_step_seconds", ())
    return stale_seconds(latest.value for _, latest in steps if latest.value is not None)


def never(item: Signal) -> SignalNow:
    """Of a signal that was not answered yet."""
    return SignalNow(item.name, item.name, {}, None, item.unit, "unknown", None, "", item.hint, None)


# Values that the tick computes without any source; the staleness of a synchronous run is always 0.
COMPUTED = frozenset({"trusted_targets_ratio", "trainer_stall_ratio", "staleness_versions", "bottleneck"})


def newest_value(by_signal: Mapping[str, Rows]) -> float | None:
    """When the newest measured value was true (epoch s); None without one. `FleetStore.newest` is the same in SQL."""
    rows = (latest for name, pairs in by_signal.items() if name not in COMPUTED for _, latest in pairs)
    return max((latest.ts / 1000 for latest in rows if latest.state is PointState.VALUE), default=None)


def signal_now(
    item: Signal, labels: Labels, latest: LatestRow, row: RunRow, now: float, stale: float, run: RunState
) -> SignalNow:
    """Its newest point as of ``now``. ``stale``: `step_stale_seconds` of the run.

    While the run catches up its numbers are true at the driver's position: they are judged as of then, and their age
    says how long ago that is.
    """
    state, why, value = _state(item, latest, row), latest.why, latest.value
    age = max(0.0, now - latest.ts / 1000)
    judged = latest.state is PointState.VALUE and row.lifecycle != "finished"
    at = run.as_of if run.name == "catching_up" and run.as_of is not None else now
    if judged and run.name == "not_collected":
        silence = "not collected" + (f" for {words(now - run.since)}" if run.since is not None else "")
    elif judged:
        silence = _silence(item, max(0.0, at - latest.ts / 1000), row, at, stale)
    else:
        silence = ""
    if silence:
        state, why, value = "unknown", f"{silence}; the last value was {latest.value:.4g}", None
    name = format_name(item.name, labels)
    ts = latest.ts / 1000
    return SignalNow(name, item.name, dict(labels), value, item.unit, state, age, latest.source, why, ts)


def _silence(item: Signal, age: float, row: RunRow, now: float, stale: float) -> str:
    """Why a value is no longer valid, or "". While ticks run, the carry time of its sources has decided."""
    if item.cadence == "step":
        return f"no step for {words(age)}" if age > stale else ""
    silent = min(age, now - row.watermark / 1000) if row.watermark is not None else age
    return f"nothing collected for {words(silent)}" if silent > TICK_STALE_SECONDS else ""


def _state(item: Signal, latest: LatestRow, row: RunRow) -> SignalState:
    if latest.state is PointState.UNKNOWN or latest.value is None:
        return "not_applicable" if latest.state is PointState.NOT_APPLICABLE else "unknown"
    if _beyond(item, latest.value, item.critical):
        return "critical"
    if _beyond(item, latest.value, item.watch) or _near_bound(item, latest.value, row):
        return "watch"
    return "ok"


def _beyond(item: Signal, value: float, band: float | None) -> bool:
    if band is None:
        return False
    return value >= band if item.higher_is_worse else value < band


def _near_bound(item: Signal, value: float, row: RunRow) -> bool:
    """Staleness has no band of its own: the run's configured bound is one, and at the bound it saturates."""
    bound = row.facts.get("max_staleness_versions")
    return item.name == "staleness_versions" and isinstance(bound, (int, float)) and bound > 0 and value >= 0.8 * bound


def words(seconds: float) -> str:
    """How long: ``3 h``, ``12 min``, ``45 s``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
