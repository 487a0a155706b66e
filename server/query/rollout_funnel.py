"""The funnel of a window, from what was added up by exit. Pure.

GPU-seconds are shares of the tokens that the engines generated meanwhile; what those made and no record tells is a bar
of its own, derived: aborted rollouts, mostly, whose tokens nobody writes down.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from collectors.model import Exit
from server.query.rollout_types import Funnel, FunnelBar
from server.store.types import RolloutSum

UNRECORDED = "unrecorded"
_EXITS: tuple[str, ...] = get_args(Exit)
_NO_RECORDS = (
    "no rollout is recorded in this window: push records (docs/rollouts.md), or read a run directory that has them"
)
_NO_ENGINES = "the tokens of aborted rollouts are not known: attach the engines (their token counter tells)"
_NO_TOKENS = "no record tells its response_tokens"
_NO_GPUS = "GPU-seconds are not known: set [run.NAME.facts] generator_gpus"
_NO_PRICE = "dollars are not known: set [run.NAME.cost] usd_per_gpu_hour"


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the engines generated within the window (None: not known), and how long it was, in seconds."""

    generated: float | None
    seconds: float


def funnel(
    sums: Sequence[RolloutSum], window: tuple[float, float], purposes: Collection[str], in_flight: int, tokens: Tokens,
    facts: Mapping[str, str | float],
) -> Funnel:  # fmt: skip
    """Bars in the order of the exits, `UNRECORDED` last. ``purposes``: of the bars; all share the engines' time."""
    gpus, price = _positive(facts, "generator_gpus"), _positive(facts, "usd_per_gpu_hour")
    recorded = sum(one.response_tokens for one in sums)
    whole = max(recorded, tokens.generated or 0.0)

    def bar(name: str, rollouts: int, count: int | None, derived: bool = False) -> FunnelBar:
        seconds = None if gpus is None or count is None or not whole else count / whole * gpus * tokens.seconds
        usd = None if seconds is None or price is None else seconds / 3600 * price
        return FunnelBar(name, rollouts, count, seconds, usd, derived)

    bars = []
    for name in (*_EXITS, *sorted({one.exit for one in sums} - set(_EXITS))) if sums else ():
        own = [one for one in sums if one.exit == name and one.purpose in purposes]
        rollouts, count = sum(one.rollouts for one in own), sum(one.response_tokens for one in own)
        # Tokens that nobody told are not none.
        bars.append(bar(name, rollouts, count if count or not rollouts else None))
    if tokens.generated is not None:
        bars.append(bar(UNRECORDED, 0, round(max(0.0, tokens.generated - recorded)), derived=True))
    why = _lacking(bool(sums), recorded, tokens, gpus, price)
    return Funnel(*window, tuple(bars), in_flight, why)


def _positive(facts: Mapping[str, str | float], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _lacking(any_records: bool, recorded: int, tokens: Tokens, gpus: float | None, price: float | None) -> str:
    said = (
        (not any_records, _NO_RECORDS),
        (any_records and not recorded, _NO_TOKENS),
        (tokens.generated is None, _NO_ENGINES),
        (gpus is None, _NO_GPUS),
        (price is None, _NO_PRICE),
    )
    return "; ".join(words for lacks, words in said if lacks)
