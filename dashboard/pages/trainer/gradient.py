"""Whether the gradient can be trusted: the mismatch between trainer and generator, and the update itself."""

from collections.abc import Iterable, Sequence

from dashboard.shell.page import Scope
from dashboard.widgets.base import Headline, absent
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import text
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import StatusFacts, View, worst
from server.query.types import AlertNow, StepInfo

_BROKEN, _DIFFERENCE = "gradient_nonfinite_steps", "mismatch_logprob_difference"
PANELS: tuple[Panel, ...] = (
    Panel("tkl", "KL to the generator", "nats", "nats", (PanelLine("mismatch", want("mismatch_kl"), "orange"),)),
    Panel(
        "tlogp",
        "Log-prob difference",
        "trainer against generator, nats",
        "nats",
        (
            PanelLine("mean", want(_DIFFERENCE, stat="mean"), "orange"),
            PanelLine("max", want(_DIFFERENCE, stat="max"), "grey", thin=True, limit=True),
        ),
    ),
    Panel(
        "tratio",
        "Importance ratio",
        "trainer over generator",
        "",
        (PanelLine("mean", want("importance_ratio"), "plum"),),
        from_zero=False,
    ),
    Panel(
        "tess",
        "Effective samples",
        "% of samples",
        "ratio",
        (PanelLine("effective", want("effective_sample_ratio"), "teal"),),
    ),
    Panel(
        "tclip", "Clipped tokens", "% of tokens", "ratio", (PanelLine("clipped", want("clip_ratio"), "plum", "zero"),)
    ),
    Panel("tentropy", "Entropy", "nats per token", "nats", (PanelLine("entropy", want("entropy"), "blue"),)),
    Panel(
        "tnorm",
        "Gradient norm",
        "before clipping",
        "",
        (PanelLine("norm", want("gradient_norm"), "blue", envelope=True),),
    ),
    Panel(
        "tbad", "Non-finite steps", "of the last 10", "steps", (PanelLine("steps", want(_BROKEN), "orange", "zero"),)
    ),
)

# (label in the sentence, signal), in its order.
_MISMATCH: tuple[tuple[str, str], ...] = (
    ("mismatch KL", "mismatch_kl"),
    ("log-prob difference", _DIFFERENCE),
    ("importance ratio", "importance_ratio"),
    ("effective samples", "effective_sample_ratio"),
)
_CHECKS = (("clipped", "clip_ratio"), ("entropy", "entropy"), *_MISMATCH)
_INPUTS = (("non-finite steps", _BROKEN), ("clipped tokens", "clip_ratio"), *_CHECKS[1:])
_NO_LIMIT = "No limit is set for the mismatch: add an alert rule, for example on `{}`."
_NO_MISMATCH = "Mismatch between trainer and generator: unknown."


def trusted(scope: Scope, found: Sequence[StepInfo]) -> View:
    """The key ``head.gradient``: the answer in one sentence, and below it what is not judged or unknown, and why."""
    facts, broken = scope.facts, scope.facts.value(_BROKEN)
    firing = {alert.signal: alert for alert in facts.status.alerts if alert.state == "firing"}
    doubts = [f"{broken:.0f} of the last 10 steps had a non-finite gradient"] if broken else []
    doubts += [one for label, signal in _CHECKS if (one := _doubt(label, signal, facts, firing, found))]
    values = ["no non-finite step"] if broken == 0 else []
    values += [f"{label} {facts.say(signal)}" for label, signal in _CHECKS if facts.value(signal) is not None]
    below = unknown(scope, _INPUTS)
    if doubts:
        state = worst([facts.state(_BROKEN), *(facts.state(signal) for _, signal in _CHECKS), "watch"])
        return {"head.gradient": Headline("Doubtful: " + "; ".join(doubts), text=below, state=state)}
    if not values:
        return {"head.gradient": Headline("Unknown", text=below, state="unknown")}
    known = [signal for _, signal in _MISMATCH if facts.value(signal) is not None]
    if broken == 0 and any(_limited(scope, signal) for signal in known):
        return {"head.gradient": Headline("Gradients can be trusted: " + ", ".join(values), text=below, state="ok")}
    note = _NO_LIMIT.format(known[0]) if known else _NO_MISMATCH
    return {"head.gradient": Headline("Not judged: " + ", ".join(values), text=f"{note} {below}", state="unknown")}


def _doubt(label: str, signal: str, facts: StatusFacts, firing: dict[str, AlertNow], found: Sequence[StepInfo]) -> str:
    """``mismatch KL 0.12 nats is beyond its limit (alert MismatchHigh) since step 40``; "" if there is no doubt."""
    alert = firing.get(signal)
    if alert is None:
        return (
            f"{label} {facts.say(signal)} is beyond its limit" if facts.state(signal) in ("watch", "critical") else ""
        )
    since = next((step.step for step in reversed(found) if step.ts <= alert.since), None)
    when = f" since step {since:,}" if since is not None else ""
    return f"{label} {text(alert.value, alert.unit)} is beyond its limit (alert {alert.name}){when}"


def _limited(scope: Scope, signal: str) -> bool:
    """Whether a band or an alert rule that can fire judges the signal."""
    info = scope.reader.signals.infos.get(signal)
    banded = info is not None and info.watch is not None
    return banded or any(rule.signal == signal and not rule.why for rule in scope.rules)


def unknown(scope: Scope, signals: Iterable[tuple[str, str]]) -> str:
    """``Unknown: entropy, effective samples (no step for 3 h).``: (label, signal) without a value, by reason."""
    missing: dict[str, list[str]] = {}
    for label, signal in signals:
        one = scope.facts.find(signal)
        if one is None or one.value is None:
            why = one.why if one is not None else absent(signal, scope.reader.signals.infos)
            missing.setdefault(why, []).append(label)
    parts = [f"{', '.join(labels)} ({why})" for why, labels in missing.items()]
    return f"Unknown: {'; '.join(parts)}." if parts else ""
