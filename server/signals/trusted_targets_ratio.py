"""Can the numbers be believed? The share of an actor's targets that answered lately, and in full."""

from typing import get_args

from collectors.model import Actor
from server.signals._model import HEARTBEAT, Answer, Signal, Unknown, Value, View

ACTORS = get_args(Actor)
_HINT = "no target has been asked yet"


def _compute(view: View) -> Answer:
    found: dict[str, list[bool]] = {}
    for target in view.targets:
        if target.kind == HEARTBEAT or target.actor not in ACTORS or not target.known(view.now):
            continue  # a heartbeat and a list give no numbers; of one not asked lately nothing is known
        found.setdefault(target.actor, []).append(target.trusted(view.now))
    values = [Value(sum(good) / len(good), (("actor", actor),)) for actor, good in sorted(found.items())]
    return values or Unknown(_HINT)


SIGNAL = Signal(
    name="trusted_targets_ratio",
    title="Trusted targets",
    unit="ratio",
    actor="queue",
    help="Share of an actor's targets that answered within three intervals, completely and with a correct clock.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    watch=1.0,
    critical=0.5,
    higher_is_worse=False,
)
