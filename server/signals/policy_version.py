"""The newest policy version. Where no framework counts versions apart, each step publishes one."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._window import TRAINER

_HINT = "no policy version yet: it comes with the first trainer step"
_NEITHER = "this trainer's steps tell neither a policy version nor how long they took: log one of the two"


def _compute(view: View) -> Answer:
    for metric in ("policy_version", "trainer_step_seconds"):
        rows = view.steps.rows((metric, ()), count=1, until=view.now)
        if rows:
            version = rows[-1].values[(metric, ())] if metric == "policy_version" else float(rows[-1].number)
            return [Value(version)]
    return Unknown(_HINT if view.steps.newest(TRAINER) is None else _NEITHER)


SIGNAL = Signal(
    name="policy_version",
    title="Policy version",
    unit="version",
    actor="trainer",
    help="Newest policy version that the trainer reports, or its step if it publishes one version per step.",
    inputs=("policy_version", "trainer_step_seconds"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
