"""What limits the run, and whether its sources can be trusted."""

from typing import get_args

from collectors.model import Actor
from server.signals.model import HEARTBEAT, Answer, Unknown, Value, View, signal


@signal(
    title="Bottleneck",
    unit="",
    actor="trainer",
    cadence="tick",
    hint="no verdict yet: it is computed from the run's first tick on",
    judged=True,
)
def bottleneck(view: View) -> Answer:
    """1 for the current outcome of the verdict, 0 for every other: what limits the run now, or that this is unknown.

    Nothing is computed here: `server.derive.results` writes the verdict under this name after all other signals, so
    that a chart, `/metrics` and an alert rule read it like any other.
    """
    return Unknown(bottleneck.hint)


ACTORS = get_args(Actor)


@signal(
    title="Trusted targets",
    unit="ratio",
    actor="queue",
    cadence="tick",
    hint="no target has been read yet",
    watch=1.0,
    critical=0.5,
    higher_is_worse=False,
)
def trusted_targets_ratio(view: View) -> Answer:
    """Share of an actor's targets that answered within three intervals, completely and with a correct clock."""
    found: dict[str, list[bool]] = {}
    for target in view.targets:
        if target.collector == HEARTBEAT or target.actor not in ACTORS or not target.known(view.now):
            continue  # a heartbeat and a list give no numbers; of one not asked lately nothing is known
        found.setdefault(target.actor, []).append(target.trusted(view.now))
    values = [Value(sum(good) / len(good), (("actor", actor),)) for actor, good in sorted(found.items())]
    return values or Unknown(trusted_targets_ratio.hint)
