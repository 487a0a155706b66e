"""How old samples are: the oldest that waits for the trainer now, and how old they were when it took them."""

import math

from server.rollouts.spread import quantile
from server.rollouts.window import NO_RECORDS
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import window

_OLDEST, _P95 = (("stat", "oldest"),), (("stat", "p95"),)
_WAITING = ("waiting_group", "queued")


def _compute(view: View) -> Answer:
    book = view.rollouts
    if not book.met:
        return Unknown(NO_RECORDS)
    if not book.consumption_told:
        return Unknown("no record tells when a rollout was used: log `consumed_at` (and `version_consumed`)")
    waiting = [one.waits_since for one in book.in_flight(view.now) if one.state in _WAITING]
    ages = [max(0.0, view.now - since) for since in waiting if since is not None]
    found, gap = window(view), "no rollout waits for the trainer now, as far as records tell"
    used = found.used.values.get("age") if not found.why else None
    why = found.why or "no record tells both its end and its use: log `finished_at` (or `scored_at`) and `consumed_at`"
    return [
        Value(max(ages, default=math.nan), _OLDEST, "" if ages else gap),
        Value(quantile(used, 0.95) if used else math.nan, _P95, "" if used else why),
    ]


SIGNAL = Signal(
    name="sample_age_seconds",
    title="Sample age",
    unit="seconds",
    actor="queue",
    help="Time since the end of generation: of the oldest finished rollout that waits for its group or the trainer "
    "now, and p95 over rollouts when they were consumed (last 10 versions). Needs rollout records.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_RECORDS,
    records=True,
)
