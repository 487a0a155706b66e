"""For `check`: applies stated facts, and evaluates tick signals of a finished run as of its end."""

import math
from collections.abc import Mapping

from server import signals
from server.cli.probe import ProbeResult
from server.derive.deriver import Deriver, Emission
from server.ingest.rollouts import RolloutIngest, versions
from server.signals.availability import inputs
from server.signals.model import TICK_WINDOW_SECONDS


def apply_stated(seen: ProbeResult, stated: Mapping[str, str | float]) -> None:
    """Replace facts of a trainer by those that the user states."""
    shown = {"mode"} if seen.target.actor == "trainer" and seen.up else set()
    seen.facts.update({name: value for name, value in stated.items() if name in seen.facts or name in shown})


def feed_records(deriver: Deriver, seen: ProbeResult, now: float) -> None:
    """Feed a source's rollouts and published versions to the deriver, as the collecting server does."""
    for ts, version in versions(seen.events, now):
        deriver.rollouts.publish(version, ts)
    ingest = RolloutIngest(clock=deriver.rollouts.clock, facts=deriver.facts)
    for arrival in sorted(ingest.take(seen.target, seen.rollouts, now).arrivals, key=lambda arrival: arrival.ts):
        deriver.rollout(arrival)
    deriver.rollouts.changed = False


def ticks(deriver: Deriver, now: float) -> list[Emission]:
    """Answers of the tick signals; of a log that ended long ago, as of its end.

    Otherwise the last value would fill the whole window, and the mean would be that of one instant.
    """
    answers = {name: (name, ts, answer) for name, ts, answer in deriver.tick(now)}
    for end in {end for item in signals.load() if (end := _ended(item, deriver)) < now - TICK_WINDOW_SECONDS}:
        then = {name: answer for name, _, answer in deriver.tick(end)}
        for item in signals.load():
            if item.name in then and _ended(item, deriver) == end:
                answers[item.name] = (item.name, now, then[item.name])
    return list(answers.values())


def _ended(item: signals.Signal | signals.Counter, deriver: Deriver) -> float:
    """Time of the newest sample of a tick signal's inputs, epoch seconds; inf if there is none."""
    gauges = (gauge for metric in inputs(item) for gauge in deriver.gauges.get(metric, {}).values())
    return max((gauge.last_ts for gauge in gauges), default=math.inf)
