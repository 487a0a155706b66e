"""What the run costs: a million trained tokens, an hour, and what of that hour idles, by cause."""

from collections.abc import Mapping

from msgspec import Struct

from dashboard.widgets.base import Quantity, state_word
from dashboard.widgets.format import money, text
from dashboard.widgets.status import StatusFacts, first_clause, joined

CAUSES: Mapping[str, str] = {
    "trainer_wait": "Trainer waits",
    "weight_sync": "Weight sync",
    "checkpoint": "Checkpoint",
    "eval": "Evaluation",
    "generator_idle": "No requests running",
    "generator_paused": "Engines paused",
    "generator_down": "Engines down",
    "stalled": "Stalled",
    "starting": "Starting",
    "paused": "Run paused",
}
"""Cause of `idle_usd_per_hour` -> its label, in the order they are shown."""

_MILLION, _HOUR, _IDLE = "cost_usd_per_million_tokens", "cost_usd_per_hour", "idle_usd_per_hour"


class Cause(Struct, frozen=True):
    """What idles for one cause."""

    usd: Quantity
    share: float


class Cost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The card of costs.

    Attributes:
        state: "known", or "unknown" where nothing is priced; ``why`` then says what to set.
        million: dollars per million trained tokens, with its state, notes and the reason for its absence.
        causes: what idles, by cause; ``share`` is its part of their sum, 0 to 1.
    """

    state: str
    why: str = ""
    million: Quantity
    million_state: str = "unknown"
    million_word: str = ""
    million_note: str = ""
    million_why: str = ""
    hour: Quantity
    basis: str = ""
    idle: Quantity
    idle_share: str = ""
    nothing: str = ""
    causes: dict[str, Cause] = {}
    also: str = ""


def cost(facts: StatusFacts) -> Cost:
    """The card of a status; where nothing is priced, what to set."""
    idle = {cause: facts.value(_IDLE, cause=cause) for cause in CAUSES}
    by_cause = {cause: usd for cause, usd in idle.items() if usd is not None}
    hour = facts.find(_HOUR)
    priced = hour is not None and hour.value is not None
    known = priced or bool(by_cause)
    found, ratio = facts.find(_MILLION, of="trained"), facts.find("cost_target_ratio")
    judged = ratio is not None and ratio.value is not None
    total, bill = sum(by_cause.values()), facts.value(_HOUR)
    silent = any(one.signal == _IDLE and one.value is None for one in facts.signals)
    return Cost(
        state="known" if known else "unknown",
        why="" if known else _why(facts),
        million=Quantity(found.value if found is not None else None, "usd"),
        million_state=ratio.state if ratio is not None and judged else "unknown",
        million_word=state_word(facts, ratio.state) if ratio is not None and judged else "",
        million_note=_targets(facts),
        million_why=first_clause(found.why) if found is not None and found.value is None else "",
        hour=Quantity(hour.value if hour is not None else None, "usd"),
        basis=hour.why if hour is not None and priced else first_clause(hour.why) if hour is not None else "",
        idle=Quantity(total if by_cause else None, "usd"),
        idle_share=f"{text(total / bill, 'ratio')} of the bill" if by_cause and bill else "",
        nothing="Nothing is idle." if by_cause and not (total or silent) else "",
        causes={cause: Cause(Quantity(usd, "usd"), round(usd / total, 3)) for cause, usd in by_cause.items() if usd},
        also=_also(facts, by_cause),
    )


def _targets(facts: StatusFacts) -> str:
    beside = ((of, facts.value(_MILLION, of=of)) for of in ("sampled", "prefill"))
    target = facts.number("target_usd_per_million_tokens")
    words = [f"{of} {money(usd)}" for of, usd in beside if usd is not None]
    return joined(*words, f"target {money(target)}" if target is not None else "no target set")


def _why(facts: StatusFacts) -> str:
    silent = facts.find(_HOUR)
    reason = facts.silence(_HOUR) or (silent.why if silent is not None else "")
    return reason or "set [run.NAME.cost]: how many GPUs, and their type or price"


def _also(facts: StatusFacts, by_cause: Mapping[str, float]) -> str:
    """Notes on the sum: dollars so far, underused GPUs, and causes without data."""
    totals = (facts.value("idle_usd_total", cause=cause) for cause in CAUSES)
    sums = [usd for usd in totals if usd is not None]
    under = facts.value("underused_usd_per_hour")
    missing = (one for one in facts.signals if one.signal == _IDLE and one.value is None)
    # Several causes may have the same reason: it is shown once.
    gaps = {one.why: CAUSES.get(one.labels.get("cause", ""), "") for one in missing if one.labels} if by_cause else {}
    return joined(
        f"{money(sum(sums))} so far" if sums else "",
        f"{money(under)}/h underused on running engines" if under is not None else "",
        *(f"{name} unknown: {first_clause(why)}" for why, name in sorted(gaps.items()) if name),
    )
