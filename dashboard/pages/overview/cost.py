"""What the run costs: a million trained tokens, an hour, and what of that hour idles, by cause. Keys ``m.*``."""

from collections.abc import Mapping

from dashboard.state.format import STATE_WORDS, money, parts, text
from dashboard.state.status import StatusFacts, View, first_clause, joined

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


def cost(facts: StatusFacts) -> View:
    """The card's texts; where nothing is priced, what to set."""
    idle = {cause: facts.value(_IDLE, cause=cause) for cause in CAUSES}
    by_cause = {cause: usd for cause, usd in idle.items() if usd is not None}
    hour = facts.find(_HOUR)
    priced = hour is not None and hour.value is not None
    return {
        "m.s": "known" if priced or by_cause else "unknown",
        "m.w": "" if priced or by_cause else _why(facts),
        "m.hour": money(hour.value) if hour is not None and hour.value is not None else "–",
        "m.basis": hour.why if hour is not None and priced else first_clause(hour.why) if hour is not None else "",
    } | _million(facts) | _idle(facts, by_cause)  # fmt: skip


def _why(facts: StatusFacts) -> str:
    silent = facts.find(_HOUR)
    reason = facts.silence(_HOUR) or (silent.why if silent is not None else "")
    return reason or "set [run.NAME.cost]: how many GPUs, and their type or price"


def _million(facts: StatusFacts) -> View:
    found, ratio = facts.find(_MILLION, of="trained"), facts.find("cost_target_ratio")
    value = found.value if found is not None else None
    judged = ratio is not None and ratio.value is not None
    beside = ((of, facts.value(_MILLION, of=of)) for of in ("sampled", "prefill"))
    target = facts.number("target_usd_per_million_tokens")
    words = [f"{of} {money(usd)}" for of, usd in beside if usd is not None]
    words += [f"target {money(target)}"] if target is not None else ["no target set"]
    return {
        "m.v": parts(value, "usd")[0],
        "m.n": joined(*words),
        "m.why": first_clause(found.why) if found is not None and value is None else "",
        "m.j": ratio.state if ratio is not None and judged else "unknown",
        "m.p": STATE_WORDS[ratio.state] if ratio is not None and judged else "",
    }


def _idle(facts: StatusFacts, by_cause: Mapping[str, float]) -> View:
    """The causes that cost anything, as parts of their sum; below it what of the rest is not known."""
    total, bill = sum(by_cause.values()), facts.value(_HOUR)
    cells: View = {"m.idle": money(total) if by_cause else "–"}
    cells["m.share"] = f"{text(total / bill, 'ratio')} of the bill" if by_cause and bill else ""
    for cause, label in CAUSES.items():
        usd = by_cause.get(cause, 0.0)
        key = f"m.c.{cause}"
        cells |= {
            f"{key}.l": label,
            f"{key}.v": money(usd) if usd else "",
            f"{key}.w": round(100 * usd / total, 1) if total else 0,
            f"{key}.s": "known" if usd else "none",
        }
    silent = any(one.signal == _IDLE and one.value is None for one in facts.signals)
    cells["m.none"] = "Nothing is idle." if by_cause and not (total or silent) else ""
    return cells | {"m.also": _also(facts, by_cause)}


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
