"""Policy versions and weight updates."""

from server.signals.engine_state import spread
from server.signals.model import Answer, Counter, Signal, Unknown, Value, View
from server.signals.step_windows import single, too_few, total, window
from server.signals.weight_update_counts import HINT, INPUTS, PAUSED, counts, stalls
from server.signals.window import TRAINER

# ---- policy_version

# The newest policy version. Where no framework counts versions apart, each step publishes one.

_POLICY_VERSION_HINT = "no policy version yet: it comes with the first trainer step"
_NEITHER = "this trainer reports neither a policy version nor step times: log one of the two"


def _policy_version(view: View) -> Answer:
    for metric in ("policy_version", "trainer_step_seconds"):
        rows = view.steps.rows((metric, ()), count=1, until=view.now)
        if rows:
            version = rows[-1].values[(metric, ())] if metric == "policy_version" else float(rows[-1].number)
            return [Value(version)]
    return Unknown(_POLICY_VERSION_HINT if view.steps.newest(TRAINER) is None else _NEITHER)


POLICY_VERSION = Signal(
    name="policy_version",
    title="Policy version",
    unit="version",
    actor="trainer",
    help="Newest policy version that the trainer reports, or its step if it publishes one version per step.",
    inputs=("policy_version", "trainer_step_seconds"),
    cadence="step",
    compute=_policy_version,
    hint=_POLICY_VERSION_HINT,
)


# ---- weight_sync_seconds

# How long publishing new weights delays the step.

_WEIGHT_SYNC_SECONDS_HINT = (
    "this trainer reports no weight sync time (prime-rl `time/broadcast_weights`, TRL async `perf/weight_sync_s`)"
)

WEIGHT_SYNC_SECONDS = Signal(
    name="weight_sync_seconds",
    title="Weight sync",
    unit="seconds",
    actor="trainer",
    help="Seconds of the step spent on publishing weights, mean over the last 10 steps.",
    inputs=("trainer_weight_sync_seconds",),
    cadence="step",
    compute=single("trainer_weight_sync_seconds", _WEIGHT_SYNC_SECONDS_HINT),
    hint=_WEIGHT_SYNC_SECONDS_HINT,
)


# ---- weight_sync_ratio

# The share of its step that the trainer spends publishing weights.

_WEIGHT_SYNC_RATIO_HINT = "this trainer reports no weight sync time next to its step time"


def _weight_sync_ratio(view: View) -> Answer:
    rows = window(view, "trainer_weight_sync_seconds", "trainer_step_seconds")
    missing = too_few(rows, _WEIGHT_SYNC_RATIO_HINT)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_weight_sync_seconds") / step if step > 0 else 0.0)]


WEIGHT_SYNC_RATIO = Signal(
    name="weight_sync_ratio",
    title="Weight sync share",
    unit="ratio",
    actor="trainer",
    help="Share of the step spent on publishing weights: sum of weight sync / sum of step over the last 10 steps.",
    inputs=("trainer_weight_sync_seconds", "trainer_step_seconds"),
    cadence="step",
    compute=_weight_sync_ratio,
    hint=_WEIGHT_SYNC_RATIO_HINT,
    # 10 %: good disaggregated transfers stay below; 25 %: a quarter of the trainer's time goes into copying weights.
    watch=0.10,
    critical=0.25,
)


# ---- generator_weight_updates

# Weight updates of an engine within 5 minutes, where they can be counted.


def _generator_weight_updates(view: View) -> Answer:
    found = counts(view)
    return spread(list(found.values())) if found else Unknown(HINT)


GENERATOR_WEIGHT_UPDATES = Signal(
    name="generator_weight_updates",
    title="Weight updates",
    unit="updates",
    actor="generator",
    help="Weight updates per engine within 5 minutes: minimum, mean and maximum. A minimum below the maximum means "
    "that an engine is left behind.",
    inputs=INPUTS,
    cadence="tick",
    compute=_generator_weight_updates,
    hint=HINT,
)


# ---- generator_weight_stall_seconds

# Seconds of the last 5 minutes in which an engine was paused or loaded weights, where they can be counted.


def _generator_weight_stall_seconds(view: View) -> Answer:
    found = stalls(view)
    return spread(list(found.values())) if found else Unknown(HINT)


GENERATOR_WEIGHT_STALL_SECONDS = Signal(
    name="generator_weight_stall_seconds",
    title="Weight update time",
    unit="seconds",
    actor="generator",
    help="Seconds of the last 5 minutes in which an engine was paused (if its page reports that) or answered calls "
    "that load weights (except /collective_rpc, which may be anything): minimum, mean and maximum over engines.",
    inputs=(*INPUTS, PAUSED),
    cadence="tick",
    compute=_generator_weight_stall_seconds,
    hint=HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    POLICY_VERSION,
    WEIGHT_SYNC_SECONDS,
    WEIGHT_SYNC_RATIO,
    GENERATOR_WEIGHT_UPDATES,
    GENERATOR_WEIGHT_STALL_SECONDS,
)
