"""Engines that answer but do not work: requests run, and the token counter has stood still for a minute."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._window import Gauge

_HINT = "no engine reports both running requests and generated tokens: add its /metrics as a target"
# Longer than the longest prefill and than a usual weight update, short against an hour of idle GPUs.
FROZEN_SECONDS = 60.0


def _by_target(gauges: list[Gauge]) -> dict[str, list[Gauge]]:
    found: dict[str, list[Gauge]] = {}
    for gauge in gauges:
        found.setdefault(gauge.target, []).append(gauge)
    return found


def _still_since(gauge: Gauge) -> float:
    """When the counter last moved, or its first page within the window."""
    since = gauge.last_ts
    for ts, value in reversed(gauge.points):
        if value != gauge.last:
            break
        since = ts
    return since


def _busy_since(gauges: list[Gauge], since: float) -> bool:
    """Did requests run in every page from `since` on?"""
    counts: dict[float, float] = {}
    for gauge in gauges:
        for ts, value in gauge.points:
            if ts >= since:
                counts[ts] = counts.get(ts, 0.0) + value
    return bool(counts) and min(counts.values()) > 0


def _compute(view: View) -> Answer:
    tokens = _by_target(view.fresh("generator_tokens_total"))
    running = _by_target(view.fresh("generator_requests_running"))
    held = {g.target for g in (*view.fresh("generator_asleep"), *view.fresh("generator_requests_paused")) if g.last > 0}
    judged = tokens.keys() & running.keys()
    if not judged:
        return Unknown(_HINT)
    limit = view.now - FROZEN_SECONDS
    return [
        Value(float(target not in held and _frozen(tokens[target], running[target], limit)), (("target", target),))
        for target in sorted(judged)
    ]


def _frozen(tokens: list[Gauge], running: list[Gauge], limit: float) -> bool:
    return max(_still_since(gauge) for gauge in tokens) <= limit and _busy_since(running, limit)


SIGNAL = Signal(
    name="generator_frozen",
    title="Frozen",
    unit="",
    actor="generator",
    help="1 for an engine that answers with requests running and whose generated tokens have stood still for 60 s; "
    "0 for the others, paused and sleeping ones too.",
    inputs=("generator_tokens_total", "generator_requests_running", "generator_asleep", "generator_requests_paused"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    critical=1.0,
)
