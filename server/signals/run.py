"""What limits the run, and whether its sources can be trusted."""

from typing import get_args

from collectors.model import Actor
from server.signals.model import HEARTBEAT, Answer, Counter, Signal, Unknown, Value, View

# ---- bottleneck

# The verdict as a signal: 1 for the outcome that holds the run back now, 0 for every other one.
#
# Nothing is worked out here: the rules of `server.verdict` are asked after all other signals, and
# `server.derive.verdict` writes what they say under this name, so that a chart, `/metrics` and an alert rule
# read it like any other.

BOTTLENECK_HINT = "no verdict yet: it is computed from the run's first tick on"


def _none_yet(view: View) -> Answer:
    return Unknown(BOTTLENECK_HINT)


BOTTLENECK = Signal(
    name="bottleneck",
    title="Bottleneck",
    unit="",
    actor="trainer",
    help="1 for the current outcome of the verdict, 0 for every other: what limits the run now, or that this is "
    "unknown.",
    inputs=(),
    cadence="tick",
    compute=_none_yet,
    hint=BOTTLENECK_HINT,
    judged=True,
)


# ---- trusted_targets_ratio

# Can the numbers be believed? The share of an actor's targets that answered lately, and in full.

ACTORS = get_args(Actor)
_TRUSTED_TARGETS_RATIO_HINT = "no target has been read yet"


def _trusted_targets_ratio(view: View) -> Answer:
    found: dict[str, list[bool]] = {}
    for target in view.targets:
        if target.kind == HEARTBEAT or target.actor not in ACTORS or not target.known(view.now):
            continue  # a heartbeat and a list give no numbers; of one not asked lately nothing is known
        found.setdefault(target.actor, []).append(target.trusted(view.now))
    values = [Value(sum(good) / len(good), (("actor", actor),)) for actor, good in sorted(found.items())]
    return values or Unknown(_TRUSTED_TARGETS_RATIO_HINT)


TRUSTED_TARGETS_RATIO = Signal(
    name="trusted_targets_ratio",
    title="Trusted targets",
    unit="ratio",
    actor="queue",
    help="Share of an actor's targets that answered within three intervals, completely and with a correct clock.",
    inputs=(),
    cadence="tick",
    compute=_trusted_targets_ratio,
    hint=_TRUSTED_TARGETS_RATIO_HINT,
    watch=1.0,
    critical=0.5,
    higher_is_worse=False,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    BOTTLENECK,
    TRUSTED_TARGETS_RATIO,
)
