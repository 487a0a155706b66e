"""What staleness must come to, by how long things take: beside what is observed, a check on both.

(mean time of a group from dispatch to completion + waiting samples / departures per second) x publications per second.
Departures are trained and dropped.
"""

import math

from server.rollouts.spread import mean
from server.rollouts.window import NO_RECORDS, RolloutBook, Window
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._queue import waiting
from server.signals._recorded import recorded
from server.signals._ticks import last_sum

_AFTER_COMPLETION = ("trained", "truncated_drop", "surplus", "stale", "zero_advantage")
_NO_QUEUE = "how many wait for the trainer is not told: push records as rollouts end, or log the queue's depth"
_ABOUT = "estimate, +-1 version"


def _compute(view: View, found: Window) -> Answer:
    if view.mode not in ("async", "async_colocated", ""):
        return view.not_in_mode("only asynchronous runs train on what waited") if view.mode else NotApplicable("")
    seconds = found.end - found.start
    if found.sampled or not found.consumed or not 0 < seconds < math.inf:
        return Unknown("needs a full window of 10 consumed versions: log `version_consumed` and `consumed_at`")
    flight, published = _in_flight(found), _published(view.rollouts, found)
    if flight is None or published is None:
        return Unknown("log `dispatched_at` and `finished_at` of rollouts, and the versions that are published")
    waits = _waiting(view, found)
    departed = sum(found.exits[name] for name in _AFTER_COMPLETION) / seconds
    if waits is None or not departed:
        return Unknown(_NO_QUEUE)
    return [Value((flight + waits / departed) * published, (), _ABOUT)]


def _waiting(view: View, found: Window) -> float | None:
    """Samples in the queue: records that wait, else as reported; none only where records tell both end and use."""
    queued = sum(one.state == "queued" for one in view.rollouts.in_flight(view.now))
    reported = waiting(view, last_sum)
    if queued or reported is not None:
        return queued or reported
    return 0.0 if found.used.values.get("age") else None


def _in_flight(found: Window) -> float | None:
    """Mean seconds from dispatch to completion: of groups, the longest of their members; else of rollouts."""
    groups = [one.seconds for one in found.groups if one.seconds is not None and one.completed is not None]
    values = groups or found.ended_values("seconds")
    return mean(values) if values else None


def _published(book: RolloutBook, found: Window) -> float | None:
    """Versions per second: as they were published, else as they were consumed."""
    told = book.clock.per_second(found.start, found.end)
    if told is not None:
        return told
    (_, first), (_, last) = found.versions[0], found.versions[-1]
    seconds = found.end - found.first_end
    return (last - first) / seconds if seconds > 0 else None


SIGNAL = Signal(
    name="staleness_estimated_versions",
    title="Estimated staleness",
    unit="versions",
    actor="queue",
    help="Staleness estimated from the duration of groups, the waiting samples and the rate of published versions "
    "(asynchronous runs, error about 1 version); last 10 consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
