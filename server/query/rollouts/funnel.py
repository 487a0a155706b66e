"""The funnel of a window, from what was added up by exit. Pure.

GPU-seconds are shares of the tokens that the engines generated meanwhile; what those made and no record tells is a bar
of its own, derived: aborted rollouts, mostly, whose tokens nobody writes down.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from collectors.model import Exit
from server.query.rollouts.types import Funnel, FunnelBar
from server.signals.gpus import NO_PRICE, Fleet
from server.store.types import RolloutSum

UNRECORDED = "unrecorded"
_EXITS: tuple[str, ...] = get_args(Exit)
_NO_RECORDS = (
    "no rollout is recorded in this window: push records, or read a run directory with them (docs/how-to/rollouts.md)"
)
_NO_ENGINES = "the tokens of aborted rollouts are unknown: attach the engines, which count tokens"
_NO_TOKENS = "no record reports response_tokens"
_NO_GPUS = "GPU-seconds are unknown: set [run.NAME.cost] generator_gpus"
_SHARED = "GPU-seconds are unknown: trainer and generator share their GPUs, and how long each used them is not reported"


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the engines generated within the window (None: not known), and how long it was, in seconds."""

    generated: float | None
    seconds: float


def funnel(
    sums: Sequence[RolloutSum], window: tuple[float, float], purposes: Collection[str], in_flight: int, tokens: Tokens,
    gpus_of: Fleet,
) -> Funnel:  # fmt: skip
    """Bars in the order of the exits, `UNRECORDED` last. ``purposes``: of the bars; all share the engines' time."""
    gpus, price = None if gpus_of.shared else gpus_of.generator.gpus, gpus_of.generator.usd_per_gpu_hour
    recorded, partly = sum(row.response_tokens for row in sums), any(row.told < row.rollouts for row in sums)
    # Without the engines' token counters the total lacks unreported tokens, so that shares would be too large.
    is_complete = tokens.generated is not None and tokens.generated >= recorded
    whole = max(recorded, tokens.generated or 0.0) if is_complete or not partly else 0.0

    def bar(name: str, rollouts: int, with_tokens: int, count: int | None, derived: bool = False) -> FunnelBar:
        seconds = None if gpus is None or count is None or not whole else count / whole * gpus * tokens.seconds
        usd = None if seconds is None or price is None else seconds / 3600 * price
        least: Literal["", "lower"] = "lower" if with_tokens < rollouts and count is not None else ""
        return FunnelBar(
            name, rollouts, count, seconds, usd, derived, with_tokens, "upper" if derived and partly else least
        )

    bars = []
    for name in (*_EXITS, *sorted({row.exit for row in sums} - set(_EXITS))) if sums else ():
        rows = [row for row in sums if row.exit == name and row.purpose in purposes]
        rollouts, with_tokens = sum(row.rollouts for row in rows), sum(row.told for row in rows)
        # Unreported tokens are unknown, not zero.
        count = sum(row.response_tokens for row in rows) if with_tokens or not rollouts else None
        bars.append(bar(name, rollouts, with_tokens, count))
    if tokens.generated is not None:
        bars.append(bar(UNRECORDED, 0, 0, round(max(0.0, tokens.generated - recorded)), derived=True))
    why = _lacking(sums, tokens, gpus_of, shares=bool(whole) or not partly)
    return Funnel(*window, tuple(bars), in_flight, why, _wasted(bars))


def _wasted(bars: Sequence[FunnelBar]) -> float | None:
    costs = [bar.usd for bar in bars if bar.exit != "trained" and bar.usd is not None]
    return sum(costs) if costs else None


def _lacking(sums: Sequence[RolloutSum], tokens: Tokens, gpus_of: Fleet, *, shares: bool) -> str:
    rollouts, with_tokens = sum(row.rollouts for row in sums), sum(row.told for row in sums)
    partly = f"{with_tokens:,} of {rollouts:,} rollouts report response_tokens: amounts cover only those"
    reasons = (
        (not sums, _NO_RECORDS),
        (bool(sums) and not with_tokens, _NO_TOKENS),
        (0 < with_tokens < rollouts, partly + ("" if shares else ", and shares of GPU time are unknown")),
        (tokens.generated is None, _NO_ENGINES),
        (gpus_of.shared, _SHARED),
        (not gpus_of.shared and gpus_of.generator.gpus is None, _NO_GPUS),
        (gpus_of.generator.usd_per_gpu_hour is None, NO_PRICE),
    )
    return "; ".join(reason for lacks, reason in reasons if lacks)
