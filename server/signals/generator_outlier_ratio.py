"""Engines that are much idler, busier or slower than the others, by name.

Each engine is compared with the median of the others: in a fleet of two the fleet's own median is half of each, and no
engine can be above twice of it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from server.signals._engines import Engine, awake
from server.signals._generated import rate
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._ticks import step_mean

_HINT = "no engine that is awake reports running requests: add its /metrics as a target"
_RUNNING, _WAITING = "generator_requests_running", "generator_requests_waiting"
# Half and twice the others: routers that balance by requests keep engines within a few percent of each other.
_IDLE, _BUSY = 0.5, 2.0
# Tokens per second and running request, of the others' median. Larger batches cost a healthy engine less than half.
_SLOW = 0.5
# A slow engine holds about as many requests as the others, or more, and generates no more tokens with them. An engine
# that gets more than its share of the requests generates more.
_SLOW_LOAD, _SLOW_TOKENS = 0.8, 1.25
# Below one request there is no load to compare.
_LEAST = 1.0
# The worst few of each side are for somebody to look at.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Load:
    """An engine's five minutes. ``requests``: running and waiting; ``tokens``: per second, None: not reported."""

    engine: Engine
    requests: float
    running: float
    tokens: float | None

    @property
    def speed(self) -> float | None:
        """Tokens per second of one running request."""
        return self.tokens / self.running if self.tokens is not None and self.running > 0 else None


def _compute(view: View) -> Answer:
    loads = _loads(view)
    if len(loads) < 2:
        return NotApplicable("one engine has no others to compare with") if loads else Unknown(_HINT)
    if loads[-1].requests < _LEAST:
        return Unknown("the engines run nothing: there is no load to compare with")
    requests = [one.requests for one in loads]
    ratios = [(of / max(_LEAST, _others(requests, at)), loads[at].engine) for at, of in enumerate(requests)]
    slow = sorted(_slow(loads), key=lambda found: found[0])[:_NAMED]
    named = [_named(ratio, engine, "slowest") for ratio, engine in slow]
    if not slow:  # What a slow engine holds, and the others do not, follows from that.
        named += [_named(ratio, engine, "idlest") for ratio, engine in ratios[:_NAMED] if ratio < _IDLE]
        named += [_named(ratio, engine, "busiest") for ratio, engine in ratios[-_NAMED:] if ratio > _BUSY]
    return [*(Value(ratios[at][0], (("side", side),)) for at, side in ((0, "idlest"), (-1, "busiest"))), *named]


def _loads(view: View) -> list[_Load]:
    """Engines that are awake, by their requests."""
    waiting = {(one.target, one.labels): one for one in view.fresh(_WAITING)}
    found = []
    for engine in awake(view):
        running, queue = engine.mean(_RUNNING, view), waiting.get((engine.target, engine.labels))
        if running is not None:
            requests = running + (step_mean(view, queue) if queue is not None else 0.0)
            found.append(_Load(engine, requests, running, rate(engine, view)))
    return sorted(found, key=lambda one: (one.requests, one.engine.named))


def _slow(loads: Sequence[_Load]) -> Iterator[tuple[float, Engine]]:
    """(speed over the others' median, engine) of each that is slower than half of it."""
    known = [(speed, one) for one in loads if (speed := one.speed) is not None]
    speeds = sorted(speed for speed, _ in known)
    requests = sorted(one.requests for _, one in known)
    tokens = sorted(one.tokens or 0.0 for _, one in known)
    for speed, one in known if len(known) > 1 else ():
        usual = _others(speeds, bisect_left(speeds, speed))
        if speed >= _SLOW * usual:
            continue
        held = _others(requests, bisect_left(requests, one.requests))
        made = _others(tokens, bisect_left(tokens, one.tokens or 0.0))
        if one.requests >= _SLOW_LOAD * held and (one.tokens or 0.0) <= _SLOW_TOKENS * made:
            yield speed / usual, one.engine


def _others(ordered: Sequence[float], at: int) -> float:
    """Median of ascending values without the one at an index; of at least two."""
    left = len(ordered) - 1
    low, high = (left - 1) // 2, left // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def _named(ratio: float, engine: Engine, side: str) -> Value:
    return Value(ratio, tuple(sorted((*engine.named, ("side", side)))))


SIGNAL = Signal(
    name="generator_outlier_ratio",
    title="Uneven engines",
    unit="ratio",
    actor="generator",
    help="Requests (running and waiting) of the least and the most loaded engine / median of the others, 5 minutes of "
    "whole steps. Up to three slow engines are named: as many requests as the others, less than half of their tokens "
    "per second and running request. If none is slow, up to three with less than half of the load and three with more "
    "than twice the load.",
    inputs=(_RUNNING, _WAITING, "generator_tokens_total", "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
