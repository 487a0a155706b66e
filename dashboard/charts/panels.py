"""What the overview shows, as tables: cards, panels and which series fill them.

A line names a signal and the labels it needs. Extra labels do not break the match: of several
candidates the one with the fewest extra labels wins, then the first by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dashboard.state.signal_lookup import Signals, Want
from server.query.types import SignalNow


@dataclass(frozen=True, slots=True)
class PanelLine:
    """One line of a panel. ``fill``: ``zero`` to the axis, ``band`` to the line before it."""

    label: str
    want: Want
    colour: str
    fill: Literal["", "zero", "band"] = ""
    thin: bool = False
    # Draws the extremes inside each bucket behind the mean, so a long range hides no spike.
    envelope: bool = False
    # Takes the label shown from this label of the series found: a run may report max and no p90.
    named_by: str = ""
    # What the others may reach: where it is far above them for a while, it does not flatten them.
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. ``kind``: ``share`` stacks to 100%, ``stack`` stacks, ``lines`` does neither."""

    key: str
    title: str
    shown: str
    unit: str
    lines: tuple[PanelLine, ...]
    kind: Literal["lines", "stack", "share"] = "lines"
    limits: str = ""
    ceiling: float | None = None
    from_zero: bool = True

    def slots(self) -> list[tuple[str, PanelLine]]:
        """``queue.0``, ``queue.1``: ids on the wire and in the page, 12 times shorter than series names."""
        return [(f"{self.key}.{i}", line) for i, line in enumerate(self.lines)]


@dataclass(frozen=True, slots=True)
class Card:
    """One number with its state. ``judge``: another signal whose bands decide the state."""

    key: str
    title: str
    colour: str
    wants: tuple[Want, ...]
    judge: Want | None = None
    notes: tuple[tuple[str, Want], ...] = ()
    # Its small line shows the highest value of each bucket, not the mean.
    peaks: bool = False

    def find(self, signals: Sequence[SignalNow]) -> SignalNow | None:
        """The first candidate with a value, else the first that has a reason for its absence."""
        found = [s for want in self.wants if (s := want.explain(signals)) is not None]
        return next((s for s in found if s.value is not None), found[0] if found else None)


def want(signal: str, **labels: str) -> Want:
    """A signal with these labels."""
    return Want(signal, tuple(labels.items()))


_MEAN_STALENESS = want("staleness_versions", level="trajectory", stat="mean")
_KV = want("kv_cache_usage_ratio")


STALENESS: tuple[PanelLine, ...] = (
    PanelLine("mean", _MEAN_STALENESS, "blue"),
    PanelLine("max", want("staleness_versions", level="trajectory", stat="max"), "blue", "band", thin=True),
)
LENGTH: tuple[PanelLine, ...] = (
    PanelLine("mean", want("response_tokens", stat="mean"), "orange"),
    PanelLine("p90", want("response_tokens", stat="p90|p95|max"), "orange", "band", thin=True, named_by="stat"),
)
REWARD: tuple[PanelLine, ...] = (PanelLine("mean", want("reward", stat="mean"), "blue", envelope=True),)
"""Lines that the overview and an actor's page both draw."""


def _cause(cause: str) -> Want:
    return want("zero_advantage_group_ratio", basis="completed|admitted", cause=cause)


CARDS: tuple[Card, ...] = (
    Card("wait", "Trainer wait", "orange", (want("trainer_wait_ratio"),)),
    Card(
        "queue",
        "Queue depth",
        "teal",
        (want("queue_samples_now"), want("queue_samples"), want("queue_batches")),
        judge=want("queue_batches"),
        notes=(("5 min mean", want("queue_batches")),),
    ),
    Card(
        "staleness",
        "Staleness",
        "blue",
        (_MEAN_STALENESS, want("staleness_versions")),
        notes=(("max", want("staleness_versions", level="trajectory", stat="max")),),
    ),
    Card("zero", "Zero advantage", "gold", (want("zero_advantage_ratio", basis="completed|admitted"),)),
    Card(
        "length",
        "Response length",
        "orange",
        (want("response_tokens", stat="mean"), want("response_tokens")),
        # Lengths have no band; how many answers the cap cuts off has.
        judge=want("truncation_ratio"),
        notes=(("p90", want("response_tokens", stat="p90")), ("truncated", want("truncation_ratio"))),
    ),
    Card(
        "kv",
        "KV cache",
        "orange",
        (_KV,),
        notes=(
            ("fullest", want("kv_cache_engine_usage_ratio", stat="max")),
            ("room for", want("kv_concurrency_limit")),
        ),
    ),
)

PANELS: tuple[Panel, ...] = (
    Panel(
        "steps",
        "Where each step goes",
        "% of step",
        "seconds",
        (
            PanelLine("wait", want("trainer_phase_seconds", phase="wait|generation"), "orange", named_by="phase"),
            PanelLine("compute", want("trainer_phase_seconds", phase="compute"), "blue"),
            PanelLine("overhead", want("trainer_phase_seconds", phase="overhead"), "grey"),
        ),
        kind="share",
        ceiling=100,
    ),
    Panel(
        "queue",
        "Queue depth",
        "samples",
        "samples",
        (
            PanelLine("now", want("queue_samples_now"), "teal", thin=True, envelope=True),
            PanelLine("5 min mean", want("queue_samples"), "teal"),
        ),
        limits="batch",
    ),
    Panel(
        "staleness",
        "Policy staleness",
        "versions behind",
        "versions",
        STALENESS,
        limits="bound",
    ),
    Panel(
        "zero",
        "Zero-advantage groups",
        "% of groups",
        "ratio",
        (
            PanelLine("all solved", _cause("all_solved"), "gold"),
            PanelLine("none solved", _cause("none_solved"), "plum"),
            PanelLine("cause unknown", _cause("equal_unknown"), "grey"),
        ),
        kind="stack",
        limits="zero_advantage_ratio",
    ),
    Panel(
        "length",
        "Response length",
        "tokens",
        "tokens",
        LENGTH,
    ),
    Panel(
        "requests",
        "Generator requests",
        "5 min mean",
        "requests",
        (
            PanelLine("running", want("generator_requests", state="running"), "orange", envelope=True),
            PanelLine("waiting", want("generator_requests", state="waiting"), "grey"),
            PanelLine("KV ceiling", want("kv_concurrency_limit"), "orange", thin=True, limit=True),
        ),
    ),
    Panel(
        "kv",
        "KV cache usage",
        "5 min mean",
        "ratio",
        (
            PanelLine("used", _KV, "orange", "zero", envelope=True),
            PanelLine("fullest engine", want("kv_cache_engine_usage_ratio", stat="max"), "orange", thin=True),
        ),
        limits="kv_cache_usage_ratio",
        ceiling=1,
    ),
    Panel(
        "ttft",
        "Time to first token",
        "over 5 min",
        "seconds",
        (
            PanelLine("p50", want("time_to_first_token_seconds", stat="p50|mean"), "orange", named_by="stat"),
            PanelLine("p95", want("time_to_first_token_seconds", stat="p95"), "orange", "band", thin=True),
        ),
    ),
    Panel(
        "itl",
        "Time between tokens",
        "over 5 min",
        "seconds",
        (
            # The mean is exact; fast decode has no quantile, for it is below the engines' first edge.
            PanelLine("mean", want("inter_token_latency_seconds", stat="mean"), "orange"),
            PanelLine("p95", want("inter_token_latency_seconds", stat="p95"), "orange", "band", thin=True),
        ),
    ),
    Panel(
        "reward",
        "Reward",
        "mean per step",
        "reward",
        REWARD,
        from_zero=False,
    ),
)


def slots(panels: Sequence[Panel] = PANELS, cards: Sequence[Card] = CARDS) -> dict[str, Want]:
    """Everything that receives live points, by slot: the lines of the panels and the cards' sparklines (``k.*``)."""
    lines = {slot: line.want for panel in panels for slot, line in panel.slots()}
    return lines | {f"k.{card.key}": card.wants[0] for card in cards}


def names_by_slot(
    signals: Sequence[SignalNow], panels: Sequence[Panel] = PANELS, cards: Sequence[Card] = CARDS
) -> Mapping[str, list[str]]:
    """Which series feed which slot, as the run reports now."""
    signals = Signals(signals)
    names = {slot: one.names(signals) for slot, one in slots(panels, cards).items()}
    for card in cards:
        found = card.find(signals)
        if found is not None and found.value is not None:
            names[f"k.{card.key}"] = [found.name]
    return names
