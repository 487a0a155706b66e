"""Whether behaviour moved away from the run's first steps."""

from server.signals.drift_answers import level, of_all, ratio, since, slope_value
from server.signals.drift_points import PREFILL_DECODE, RESPONSE_LENGTH, TOOL_CALLS, TURNS, WATCHED
from server.signals.model import Counter, Signal, fold

# At 1.5 times the initial level, step time and KV ceiling have changed too: as the rule ResponseLengthDrift.
MOVED_FAR = 1.5

# ---- drift_since_step

# Since which step a behaviour is away from the run's own first steps.

_DRIFT_SINCE_STEP_HINT = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"

DRIFT_SINCE_STEP = Signal(
    name="drift_since_step",
    title="Drift since",
    unit="step",
    actor="generator",
    help="Step at which a behaviour left its initial level permanently (response_length, turns, tool_calls, "
    "prefill_decode; two-sided Page-Hinkley test and at least 16% away); unknown if it has not.",
    inputs=tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs)))),
    cadence="step",
    hint=_DRIFT_SINCE_STEP_HINT,
    records=True,
    **fold(of_all(since, _DRIFT_SINCE_STEP_HINT, announce=True)),
)


# ---- drift_baseline

# The level of a behaviour in the run's own first steps.

_DRIFT_BASELINE_HINT = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"

DRIFT_BASELINE = Signal(
    name="drift_baseline",
    title="Initial level",
    unit="",
    actor="generator",
    help="Level in the run's own first steps of response_length (tokens), turns, tool_calls and prefill_decode (prompt "
    "tokens per generated token): what the drift ratios compare with.",
    inputs=tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs)))),
    cadence="step",
    hint=_DRIFT_BASELINE_HINT,
    records=True,
    **fold(of_all(level, _DRIFT_BASELINE_HINT)),
)


# ---- drift_slope_ratio

# How fast a behaviour moves, per step.

_DRIFT_SLOPE_RATIO_HINT = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"

DRIFT_SLOPE_RATIO = Signal(
    name="drift_slope_ratio",
    title="Drift per step",
    unit="ratio",
    actor="generator",
    help="Change per step as a share of the initial level: Theil-Sen slope of the last 30 steps, of response_length, "
    "turns, tool_calls and prefill_decode.",
    inputs=tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs)))),
    cadence="step",
    hint=_DRIFT_SLOPE_RATIO_HINT,
    records=True,
    **fold(of_all(slope_value, _DRIFT_SLOPE_RATIO_HINT)),
)


# ---- prefill_decode_drift_ratio

# How far prompt tokens per generated token have moved from the run's own first steps.

_PREFILL_DECODE_DRIFT_RATIO_HINT = (
    "no prompt and response length by step, and no engine that counts its tokens while the trainer's steps are read: "
    "log both, or add the engines' /metrics as targets"
)

PREFILL_DECODE_DRIFT_RATIO = Signal(
    name="prefill_decode_drift_ratio",
    title="Prefill to decode drift",
    unit="x",
    actor="generator",
    help="Prompt tokens per generated token, median of the last 10 steps / the run's own first steps (30 after 5 of "
    "burn-in, or the first 10 of a run that drifts from its start). From the trainer's log of both, or else from the "
    "engines' counters over 5 minutes, for steps that are 5 minutes apart.",
    inputs=("trainer_step_seconds", *PREFILL_DECODE.inputs),
    cadence="step",
    hint=_PREFILL_DECODE_DRIFT_RATIO_HINT,
    watch=MOVED_FAR,
    **fold(ratio(PREFILL_DECODE, _PREFILL_DECODE_DRIFT_RATIO_HINT)),
)


# ---- response_length_drift_ratio

# How far the response length has moved from the run's own first steps.

_RESPONSE_LENGTH_DRIFT_RATIO_HINT = (
    "no response length by step: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`), or give rollout records"
)

RESPONSE_LENGTH_DRIFT_RATIO = Signal(
    name="response_length_drift_ratio",
    title="Response length drift",
    unit="x",
    actor="generator",
    help="Median response length of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the "
    "first 10 of a run that drifts from its start), by environment if records name it. Compare with the truncation "
    "ratio.",
    inputs=RESPONSE_LENGTH.inputs,
    cadence="step",
    hint=_RESPONSE_LENGTH_DRIFT_RATIO_HINT,
    records=True,
    watch=MOVED_FAR,
    **fold(ratio(RESPONSE_LENGTH, _RESPONSE_LENGTH_DRIFT_RATIO_HINT)),
)


# ---- tool_calls_drift_ratio

# How far the tool calls per rollout have moved from the run's own first steps.

_TOOL_CALLS_DRIFT_RATIO_HINT = "no tool calls by step: log them (TRL `tools/call_frequency`), or give rollout records"

TOOL_CALLS_DRIFT_RATIO = Signal(
    name="tool_calls_drift_ratio",
    title="Tool calls drift",
    unit="x",
    actor="sandbox",
    help="Median tool calls of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 "
    "of a run that drifts from its start), by environment if records name it.",
    inputs=TOOL_CALLS.inputs,
    cadence="step",
    hint=_TOOL_CALLS_DRIFT_RATIO_HINT,
    records=True,
    watch=MOVED_FAR,
    **fold(ratio(TOOL_CALLS, _TOOL_CALLS_DRIFT_RATIO_HINT)),
)


# ---- turns_drift_ratio

# How far the turns per rollout have moved from the run's own first steps.

_TURNS_DRIFT_RATIO_HINT = (
    "no turns by step: log them (prime-rl `train/agg/effective/num_turns/mean`), or give rollout records"
)

TURNS_DRIFT_RATIO = Signal(
    name="turns_drift_ratio",
    title="Turns drift",
    unit="x",
    actor="generator",
    help="Median turns of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 of a "
    "run that drifts from its start), by environment if records name it.",
    inputs=TURNS.inputs,
    cadence="step",
    hint=_TURNS_DRIFT_RATIO_HINT,
    records=True,
    watch=MOVED_FAR,
    **fold(ratio(TURNS, _TURNS_DRIFT_RATIO_HINT)),
)


SIGNALS: tuple[Signal | Counter, ...] = (
    DRIFT_SINCE_STEP,
    DRIFT_BASELINE,
    DRIFT_SLOPE_RATIO,
    PREFILL_DECODE_DRIFT_RATIO,
    RESPONSE_LENGTH_DRIFT_RATIO,
    TOOL_CALLS_DRIFT_RATIO,
    TURNS_DRIFT_RATIO,
)
