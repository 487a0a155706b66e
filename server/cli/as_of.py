"""What `check` says of a log as of the time it is about: facts that are stated, means as of a finished run's end."""

import math
from collections.abc import Mapping

from server import signals
from server.cli.probe import ProbeResult
from server.derive.deriver import Deriver, Emission
from server.ingest.rollouts.feed import versions
from server.ingest.rollouts.fold import RolloutIngest
from server.signals.availability import inputs
from server.signals.model import SYNC_MODES, TICK_WINDOW_SECONDS


def believe(seen: ProbeResult, stated: Mapping[str, str | float]) -> None:
    """What the user states wins over what a trainer found, also where its collector cannot be told."""
    shown = {"mode", "mode_assumed"} if seen.target.actor == "trainer" and seen.up else set()
    seen.facts.update({name: value for name, value in stated.items() if name in seen.facts or name in shown})


def records(deriver: Deriver, seen: ProbeResult, now: float) -> None:
    """Rollouts and published versions that a source holds, as if they had been collected."""
    for ts, version in versions(seen.events, now):
        deriver.rollouts.publish(version, ts)
    ingest = RolloutIngest(clock=deriver.rollouts.clock, facts=deriver.facts)
    for arrival in sorted(ingest.take(seen.target, seen.rollouts, now).arrivals, key=lambda arrival: arrival.ts):
        deriver.rollout(arrival)
    deriver.rollouts.changed = False


def ticks(deriver: Deriver, now: float) -> list[Emission]:
    """Answers of the tick signals: of a log that ended long ago as of its end, as a server would have kept them.

    Else the last value would be held over all of the window, and the mean over it would be that instant's.
    """
    answers = {name: (name, ts, answer) for name, ts, answer in deriver.tick(now)}
    for end in {end for item in signals.load() if (end := _ended(item, deriver)) < now - TICK_WINDOW_SECONDS}:
        then = {name: answer for name, _, answer in deriver.tick(end)}
        for item in signals.load():
            if item.name in then and _ended(item, deriver) == end:
                answers[item.name] = (item.name, now, then[item.name])
    return list(answers.values())


def _ended(item: signals.Signal | signals.Counter, deriver: Deriver) -> float:
    """The newest sample behind a tick signal, epoch seconds; never where nothing of the moment is behind it."""
    gauges = (gauge for metric in inputs(item) for gauge in deriver.gauges.get(metric, {}).values())
    return max((gauge.last_ts for gauge in gauges), default=math.inf)


def by_mode(item: signals.Signal | signals.Counter, deriver: Deriver) -> str:
    """A value without a key that follows from the mode: of an assumed mode it is assumed too."""
    synchronous = item.name == "staleness_versions" and deriver.mode in SYNC_MODES
    return "(mode assumed)" if synchronous and deriver.facts.get("mode_assumed") else ""
