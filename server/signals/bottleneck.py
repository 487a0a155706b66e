"""The verdict as a signal: 1 for the outcome that holds the run back now, 0 for every other one.

Nothing is worked out here: the rules of `server.verdict` are asked after all other signals, and
`server.derive.verdict_tracker` writes what they say under this name, so that a chart, `/metrics` and an alert rule read
it like any other.
"""

from server.signals._model import Answer, Signal, Unknown, View

HINT = "no verdict yet: the rules judge a run from its first tick on"


def _none_yet(view: View) -> Answer:
    return Unknown(HINT)


SIGNAL = Signal(
    name="bottleneck",
    title="Bottleneck",
    unit="",
    actor="trainer",
    help="1 for the current outcome of the verdict, 0 for every other: what limits the run now, or that this is "
    "unknown.",
    inputs=(),
    cadence="tick",
    compute=_none_yet,
    hint=HINT,
    judged=True,
)
