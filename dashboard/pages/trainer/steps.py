"""Single steps of the trainer as cells: one by one, compared with their median, and learning metrics."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from dashboard.shell.page import Scope
from dashboard.widgets.format import number, short, text
from dashboard.widgets.status import View, joined
from server.query.types import EventInfo, StepInfo

READ, ROWS = 40, 20
"""Steps that are read and drawn; rows of the table."""
# Seconds. Steps rarely change afterwards; late values of a step appear after this time.
_KEEP_SECONDS = 20.0
_EVENTS, _EVENT_KINDS = 5, ("restart", "resume", "checkpoint", "config_change")
_EVENT_LABELS = {
    "restart": "Restarted",
    "resume": "Resumed",
    "checkpoint": "Checkpoint",
    "config_change": "Configuration",
}
# Ratio to the median above which a step is flagged.
FAR = 1.5
_LEAST_SECONDS = 0.5

PHASES: tuple[tuple[str, str, str, str], ...] = (
    ("wait", "Wait", "trainer_wait_seconds", "orange"),
    ("generation", "Generation", "generation_seconds", "orange"),
    ("compute", "Compute", "trainer_compute_seconds", "blue"),
    ("weight_sync", "Weight sync", "trainer_weight_sync_seconds", "plum"),
    ("checkpoint", "Checkpoint", "trainer_checkpoint_seconds", "gold"),
    ("eval", "Evaluation", "trainer_eval_seconds", "teal"),
    ("other", "Other", "trainer_other_seconds", "grey"),
)
"""(key, label, metric, colour) in stacking order."""

LEARNING: tuple[tuple[str, str, str], ...] = (
    ("Gradient norm", "gradient_norm", ""),
    ("Clipped tokens", "clip_ratio", "ratio"),
    ("Learning rate", "learning_rate", ""),
    ("Mismatch KL", "mismatch_kl_mean", ""),
    ("Log-prob difference", "mismatch_logprob_difference_mean", ""),
    ("Importance ratio", "importance_ratio_mean", ""),
    ("Reference KL", "reference_kl_mean", ""),
    ("Effective samples", "effective_sample_ratio", "ratio"),
    ("Loss", "loss_mean", ""),
)
"""Learning metrics of single steps: (label, metric, unit)."""


def read(scope: Scope) -> list[StepInfo]:
    """The newest steps, read again when one came."""
    newest = scope.facts.find("trainer_step_seconds")
    key = ("steps", scope.run, newest.ts if newest is not None else None)
    return scope.shared.get(key, _KEEP_SECONDS, lambda: scope.reader.steps.newest(scope.run, READ))


def phases(step: StepInfo) -> dict[str, float]:
    """Reported seconds by phase. An evaluation inside the step is subtracted from the rest; in a step without a
    reported compute time the rest is compute."""
    found = {key: value for key, _, metric, _ in PHASES if (value := step.values.get(metric)) is not None}
    if "eval" in found and "other" in found:
        found["other"] = max(0.0, found["other"] - found["eval"])
    # In a synchronous run the wait is the generation that it does itself.
    if "generation" in found and "wait" in found:
        del found["wait"]
    whole = step.values.get("trainer_step_seconds")
    if whole is not None and "compute" not in found and found:
        found["compute"] = max(0.0, whole - sum(found.values()))
    return found


def took(step: StepInfo) -> float | None:
    return step.values.get("trainer_step_seconds")


def usual(found: Sequence[StepInfo], metric: str) -> float | None:
    """The median of the steps that report the metric, without the last step, which is compared with it."""
    values = [value for step in found[:-1] if (value := step.values.get(metric)) is not None]
    return median(values) if len(values) >= 3 else None


def one_by_one(found: Sequence[StepInfo]) -> View:
    """Keys ``step_bars.N``: a step, its seconds by phase in the order of `PHASES`, and those of the whole."""
    cells: View = {f"step_bars.{i}": _bar(step) for i, step in enumerate(found)}
    values = [value for step in found if (value := took(step)) is not None]
    middle = median(values) if values else None
    return cells | {
        "step_bars.median": short(middle),
        "step_bars.words": f"median {text(middle, 'seconds')}" if middle is not None else "",
        "step_bars.none": "" if found else "No step has been logged yet.",
    }


def _bar(step: StepInfo) -> dict[str, Any]:
    seconds = phases(step)
    by_phase = [short(seconds.get(key)) for key, *_ in PHASES]
    return {"step": step.step, "phases": by_phase, "life": step.life, "seconds": short(took(step))}


def last_against_usual(found: Sequence[StepInfo]) -> View:
    """Keys ``last_step.N``: a phase, its last and median seconds, their widths in percent; ``.words``: of the whole.

    ``.none``: why there is no phase.
    """
    if not found:
        return {"last_step.words": "", "last_step.s": "unknown", "last_step.none": "No step has been logged yet."}
    last, before = found[-1], found[:-1]
    now, top = phases(last), max([*phases(last).values(), 1e-9])
    middles = {key: _median([phases(step).get(key) for step in before]) for key, *_ in PHASES}
    top = max([top, *(value for value in middles.values() if value is not None)])
    rows = [
        {"phase": title, "last": text(now[key], "seconds"), "median": _shown(middles[key], "seconds"),
         "width": round(100 * now[key] / top, 1), "median_at": round(100 * (middles[key] or 0) / top, 1),
         "state": _state(now[key], middles[key]), "colour": colour}
        for key, title, _, colour in PHASES if key in now
    ]  # fmt: skip
    whole, middle = took(last), usual(found, "trainer_step_seconds")
    title = f"Step {last.step:,} took {text(whole, 'seconds')}" if whole is not None else f"Step {last.step:,}"
    if whole is not None and middle:
        title += f", {_against(whole, middle)} the median of {text(middle, 'seconds')}"
    cells: View = {f"last_step.{i}": row for i, row in enumerate(rows)}
    none = "" if rows else "This trainer logs no parts of a step."
    return cells | {"last_step.words": title, "last_step.s": _state(whole or 0.0, middle), "last_step.none": none}


def _median(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if len(measured) >= 3 else None


def _against(value: float, middle: float) -> str:
    share = value / middle - 1
    if abs(share) < 0.05:
        return "about"
    return f"{text(abs(share), 'ratio')} {'above' if share > 0 else 'below'}"


def _state(value: float, middle: float | None) -> str:
    # What most steps do not do at all (a checkpoint) is not unlike them when it is done.
    far = middle is not None and middle > 0 and value > FAR * middle and value - middle >= _LEAST_SECONDS
    return "watch" if far else "ok"


def _shown(value: float | None, unit: str = "") -> str:
    """A missing value is empty, never zero."""
    return "" if value is None else text(value, unit)


def table(found: Sequence[StepInfo]) -> View:
    """Keys ``step_rows.N``: a step's numbers as texts, newest first; ``.phases``: which phases any step reports."""
    middle = usual(found, "trainer_step_seconds")
    rows = found[::-1][:ROWS]
    reported = {key for step in rows for key in phases(step)}
    cells: View = {f"step_rows.{i}": _row(step, middle) for i, step in enumerate(rows)}
    return cells | {
        "step_rows.phases": [{"label": label, "reported": key in reported} for key, label, *_ in PHASES],
        "step_rows.none": "" if rows else "No step has been logged yet.",
    }


def _row(step: StepInfo, middle: float | None) -> dict[str, Any]:
    seconds, values = phases(step), step.values
    whole = took(step)
    return {
        "step": f"{step.step:,}",
        "at": round(step.ts),
        "total": _seconds(whole),
        "phases": [_seconds(seconds.get(key)) for key, *_ in PHASES],
        "samples": _shown(values.get("trainer_samples")),
        "tokens": _shown(values.get("trained_tokens")),
        "staleness": _shown(values.get("staleness_versions_mean")),
        "reward": _shown(values.get("reward_mean")),
        "gradient": "non-finite" if values.get("gradient_nonfinite") else _shown(values.get("gradient_norm")),
        "slow": whole is not None and _state(whole, middle) == "watch",
    }


def _seconds(value: float | None) -> str:
    """One column, one unit: the head names it."""
    return "" if value is None else number(value)


def learning(found: Sequence[StepInfo]) -> View:
    """Keys ``learning.N``: a metric's last value, median and last values; ``.none``: metrics that no step reports."""
    rows = []
    silent = []
    for label, metric, unit in LEARNING:
        values = [step.values.get(metric) for step in found]
        last = next((value for value in reversed(values) if value is not None), None)
        if last is None:
            silent.append(label.lower().replace(" kl", " KL"))
            continue
        middle = _shown(usual(found, metric), unit)
        drawn = [short(value) for value in values]
        rows.append({"label": label, "last": text(last, unit), "median": middle, "values": drawn})
    cells: View = {f"learning.{i}": row for i, row in enumerate(rows)}
    broken = sum(bool(step.values.get("gradient_nonfinite")) for step in found)
    return cells | {
        "learning.none": f"Not logged: {', '.join(silent)}." if silent else "",
        "learning.bad": f"{broken} of the last {len(found)} steps had a non-finite gradient." if broken else "",
    }


def incarnations(scope: Scope, found: Sequence[StepInfo]) -> View:
    """Keys ``restarts.N``: restarts and checkpoints in the time shown, newest first; ``.updates``: steps per version"""
    span, reader, run = scope.span, scope.reader, scope.run
    if span is None:
        return {}
    start, end = int(span.start // 60) * 60, int(span.end // 60) * 60 + 60

    def events() -> list[EventInfo]:
        return reader.runs.events(run, start, end, _EVENT_KINDS, 200)

    happened = scope.shared.get(("life", run, start, end), _KEEP_SECONDS, events)
    rows = happened[::-1][:_EVENTS]
    cells: View = {
        f"restarts.{i}": {"event": _EVENT_LABELS.get(one.kind, one.kind), "detail": one.detail, "at": round(one.ts)}
        for i, one in enumerate(rows)
    }
    counts = {kind: sum(one.kind == kind for one in happened) for kind in _EVENT_KINDS}
    parts = [
        f"{count:,} {word}{'s' if count != 1 else ''}"
        for kind, word in (("restart", "restart"), ("checkpoint", "checkpoint"))
        if (count := counts[kind])
    ]
    return cells | {
        "restarts.sum": joined(*parts),
        "restarts.none": "" if rows else "No restarts or checkpoints in this range.",
        "restarts.updates": _per_version(scope, found),
    }


def _per_version(scope: Scope, found: Sequence[StepInfo]) -> str:
    """How many steps share a version of the weights, over the steps that are shown."""
    if len(found) < 3:
        return ""
    first, last = found[0].ts, found[-1].ts
    key = ("versions", scope.run, first, last)
    published = scope.shared.get(
        key, _KEEP_SECONDS, lambda: scope.reader.runs.events(scope.run, first, last, ("weights_published",), 1000)
    )
    if not published:
        return "Weight publications are not reported."
    per = (len(found) - 1) / len(published)
    plural = "s" if len(published) != 1 else ""
    each = number(per)
    rate = f"{each} step{'s' if each != '1' else ''} per version"
    return f"{len(published):,} version{plural} in {len(found) - 1} steps: {rate}"
