"""Where a rollout's time goes: setting up, the model, tools, scoring. Mean seconds per rollout, last 10 steps."""

from server.signals._model import STEP_MINIMUM, Answer, Signal, Unknown, Value, View
from server.signals._steps import mean, window

_HINT = (
    "no rollout times by phase: the trainer must log them (prime-rl `timing/agent/model/mean`, TRL async `env/reset_s` "
    "and `tools/latency_s`, verl `timing_s/agent_loop/...`)"
)
PHASES = {
    "setup": "rollout_setup_seconds_mean",
    "model": "rollout_model_seconds_mean",
    "tools": "rollout_harness_seconds_mean",
    "scoring": "rollout_scoring_seconds_mean",
    "all": "rollout_seconds_mean",
}


def _compute(view: View) -> Answer:
    found = {}
    for phase, metric in PHASES.items():
        rows = window(view, metric)
        if len(rows) >= STEP_MINIMUM:
            found[phase] = mean(rows, metric)
    tools = _by_call(view)
    if "tools" not in found and tools is not None:
        found["tools"] = tools
    return [Value(seconds, (("phase", phase),)) for phase, seconds in found.items()] or Unknown(_HINT)


def _by_call(view: View) -> float | None:
    """Seconds in tools from what a call takes and how many there are."""
    rows = window(view, "tool_call_seconds_mean", "tool_calls_mean")
    if len(rows) < STEP_MINIMUM:
        return None
    return mean(rows, "tool_call_seconds_mean") * mean(rows, "tool_calls_mean")


SIGNAL = Signal(
    name="rollout_phase_seconds",
    title="Where each rollout goes",
    unit="seconds",
    actor="generator",
    help="Mean seconds per rollout by phase: setup (environment, sandbox), model, tools, scoring, and all (start to "
    "end), from the trainer's log, last 10 steps.",
    inputs=(*PHASES.values(), "tool_call_seconds_mean", "tool_calls_mean"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
