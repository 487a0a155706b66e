"""What a weight update consists of: its parts in the trainer, its bandwidth, and the load in the engines."""

from dashboard.pages.trainer.gradient import unknown
from dashboard.shell.page import Scope
from dashboard.widgets.base import Headline
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import text
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import View

_PART, _LOAD, _BANDWIDTH = "weight_sync_part_seconds", "generator_weight_load_seconds", "weight_sync_bandwidth"
_COLOURS = {"pause": "orange", "barrier": "gold", "transfer": "plum", "other": "grey"}
PANELS: tuple[Panel, ...] = (
    Panel(
        "tparts",
        "Weight update",
        "seconds by part",
        "seconds",
        tuple(PanelLine(part, want(_PART, part=part), colour) for part, colour in _COLOURS.items()),
        kind="stack",
    ),
    Panel(
        "tload",
        "Load in the engines",
        "seconds of one update",
        "seconds",
        (
            PanelLine("slowest", want(_LOAD, stat="max"), "orange"),
            PanelLine("median", want(_LOAD, stat="median"), "grey", thin=True),
        ),
    ),
    Panel(
        "tband", "Bandwidth", "bytes sent over seconds", "GB/s", (PanelLine("sent", want(_BANDWIDTH), "plum", "zero"),)
    ),
    Panel(
        "tcount",
        "Updates per engine",
        "within 5 minutes",
        "updates",
        (
            PanelLine("most", want("generator_weight_updates", stat="max"), "blue"),
            PanelLine("fewest", want("generator_weight_updates", stat="min"), "grey", thin=True),
        ),
    ),
)

# Share of the weight sync. Smaller parts are in the panel only.
_LEAST = 0.01
# Times the median: an engine below it is as fast as the others.
_SLOW = 1.25
_INPUTS = (("weight sync", "weight_sync_seconds"), ("parts", _PART), ("engines' load", _LOAD), ("GB/s", _BANDWIDTH))


def anatomy(scope: Scope) -> View:
    """The key ``head.weights``: the parts of a weight update in one sentence, and below it what is unknown, and why."""
    facts = scope.facts
    whole, say = facts.value("weight_sync_seconds"), facts.say
    parts = [(part, facts.value(_PART, part=part)) for part in _COLOURS]
    least = _LEAST * whole if whole else 0.0
    shown = [f"{part} {text(value, 'seconds')}" for part, value in parts if value is not None and value > least]
    clauses = [f"{say('weight_sync_seconds')} per step" + (f": {', '.join(shown)}" if shown else "")] if whole else []
    if rate := say(_BANDWIDTH):
        found = facts.find(_BANDWIDTH)
        clauses.append(("at least " if found is not None and found.why else "") + rate)
    slowest, usual = facts.find(_LOAD, stat="max"), facts.value(_LOAD, stat="median")
    if slowest is not None and slowest.value is not None and usual is not None:
        clauses.append(f"engines load it in {text(usual, 'seconds')} (median)")
        if slowest.why and slowest.value >= _SLOW * usual:
            clauses.append(f"the slowest in {text(slowest.value, 'seconds')} ({slowest.why})")
    before = "; ".join(clauses)
    return {
        "head.weights": Headline(
            before[:1].upper() + before[1:] or "Unknown",
            text=unknown(scope, _INPUTS),
            state=facts.state("weight_sync_ratio") if whole else "unknown",
        )
    }
