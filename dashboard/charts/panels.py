"""What the overview shows, as tables: cards, panels and which series fill them.

A line names a signal and the labels it needs. Extra labels do not break the match: of several
candidates the one with the fewest extra labels wins, then the first by name.
"""

from collections.abc import Iterable, Mapping, Sequence

from dashboard.widgets.card import Card
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.signal_lookup import Signals, Want, want
from server.query.types import SignalNow

STEPS = "last 10 steps"
"""Window of the trainer's signals."""
SPINUP_P95 = want("sandbox_spinup_latency_seconds", image="all", stat="p95")
OLDEST_PENDING = want("sandbox_oldest_pending_seconds")

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


def _mean_of(signal: str, colour: str) -> PanelLine:
    return PanelLine("mean", want(signal, stat="mean"), colour)


def _cause(cause: str) -> Want:
    return want("zero_advantage_group_ratio", basis="completed|admitted", cause=cause)


CARDS: tuple[Card, ...] = (
    Card("wait", "Trainer wait", "orange", (want("trainer_wait_ratio"),), window=STEPS),
    Card(
        "queue",
        "Queue depth",
        "teal",
        (want("queue_samples_now"), want("queue_samples"), want("queue_batches")),
        judges=(want("queue_batches"),),
        notes=(("5 min mean", want("queue_batches")),),
        window="now",
    ),
    Card(
        "staleness",
        "Staleness",
        "blue",
        (_MEAN_STALENESS, want("staleness_versions")),
        notes=(("max", want("staleness_versions", level="trajectory", stat="max")),),
        window=STEPS,
        limit="bound",
    ),
    Card("zero", "Zero advantage", "gold", (want("zero_advantage_ratio", basis="completed|admitted"),), window=STEPS),
    Card(
        "length",
        "Response length",
        "orange",
        (want("response_tokens", stat="mean"), want("response_tokens")),
        # Lengths have no band; how far they have moved, and how many answers the cap cuts off, have.
        judges=(want("response_length_drift_ratio"), want("truncation_ratio")),
        flags=(("truncated", want("truncation_ratio")),),
        window=STEPS,
        drift="response_length",
    ),
    Card(
        "spinup",
        "Spin-up p95",
        "purple",
        (SPINUP_P95,),
        judges=(OLDEST_PENDING,),
        notes=(
            ("p50", want("sandbox_spinup_latency_seconds", image="all", stat="p50")),
            ("oldest pending", OLDEST_PENDING),
        ),
        window="ready in 5 min",
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
        window="5 min mean",
    ),
)

FIRST: tuple[Panel, ...] = (
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
        "rates",
        "Production and consumption",
        "samples/s",
        "samples/s",
        (
            PanelLine("consumed", want("trainer_samples_per_second"), "blue", "zero"),
            PanelLine("generated", want("production_samples_per_second", stage="completed"), "orange"),
            PanelLine("with a gradient", want("production_samples_per_second", stage="trainable"), "gold"),
        ),
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
        "spinup",
        "Sandbox spin-up",
        "ready in 5 min, and pending",
        "seconds",
        (
            PanelLine("p50", want("sandbox_spinup_latency_seconds", image="all", stat="p50"), "purple"),
            PanelLine("p95", SPINUP_P95, "purple", "band", thin=True),
            PanelLine("oldest pending", OLDEST_PENDING, "orange"),
        ),
        limits="sandbox_spinup_latency_seconds",
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
        "reward",
        "Reward",
        "mean per step",
        "reward",
        REWARD,
        from_zero=False,
    ),
)


BEHAVIOUR: tuple[Panel, ...] = (
    Panel("length", "Response length", "tokens, last 10 steps", "tokens", LENGTH, drift="response_length"),
    Panel("turns", "Turns", "per rollout, last 10 steps", "turns", (_mean_of("turns", "orange"),), drift="turns"),
    Panel(
        "tool_calls",
        "Tool calls",
        "per rollout, last 10 steps",
        "calls",
        (_mean_of("tool_calls", "purple"),),
        drift="tool_calls",
    ),
    Panel(
        "prefill",
        "Prefill share",
        "prompt per generated token, against the first steps",
        "",
        (PanelLine("factor", want("prefill_decode_drift_ratio"), "orange"),),
        limits="prefill_decode_drift_ratio",
        drift="prefill_decode",
    ),
)
"""How the policy behaves, against its first steps: one row of the overview."""
PANELS = (*FIRST, *BEHAVIOUR)
"""All charts of the overview."""


def slots(panels: Sequence[Panel] = PANELS, cards: Sequence[Card] = CARDS) -> dict[str, Want]:
    """Everything that receives live points, by slot: the lines of the panels and the cards' sparklines (``card.*``)."""
    lines = {slot: line.want for panel in panels for slot, line in panel.slots()}
    return lines | {f"card.{card.key}": card.wants[0] for card in cards}


def names_by_slot(
    signals: Iterable[SignalNow], panels: Sequence[Panel] = PANELS, cards: Sequence[Card] = CARDS
) -> Mapping[str, list[str]]:
    """Which series feed which slot, as the run reports now."""
    signals = Signals(signals)
    names = {slot: one.names(signals) for slot, one in slots(panels, cards).items()}
    for card in cards:
        found = card.find(signals)
        if found is not None and found.value is not None:
            names[f"card.{card.key}"] = [found.name]
    return names
