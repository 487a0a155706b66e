"""Cells of the verdict: label and colour of an outcome, its evidence, and its history as a ribbon.

Its texts may contain names from frameworks and targets, so they are never markup.
"""

import re
from collections.abc import Mapping, Sequence

from dashboard.charts.time_columns import grid
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from dashboard.widgets.format import number, tight
from dashboard.widgets.status import View, joined
from server.query import Reader
from server.query.types import Advice, Contradiction, Limiter, Verdict, VerdictSpan

COLOURS: Mapping[str, str] = {
    "stalled": "stalled",
    "generator_bound": "generator",
    "sandbox_bound": "sandbox",
    "reward_bound": "reward",
    "curriculum_bound": "curriculum",
    "trainer_bound": "trainer",
    "overhead_bound": "overhead",
    "orchestrator_bound": "orchestrator",
    "balanced": "balanced",
}
"""Outcome -> colour of its chip and its part of the ribbon (`data-state`)."""

# Labels of an unknown verdict by its cause.
_UNKNOWN = {
    "starting": "Too early to judge", "incomplete": "No verdict now",
    "paused": "Paused", "over": "Ended",
}  # fmt: skip
_CONFIDENCE = ((0.75, "high"), (0.45, "medium"), (0.0, "low"))
MOST = 200
"""Most parts of a ribbon, the newest ones: more would be a few pixels wide each."""


def colour(outcome: str) -> str:
    return COLOURS.get(outcome, "none")


_CAUSES: Mapping[str, str] = {"not_told": "cause not reported"}
"""Causes whose key is no text."""


def word(outcome: str, cause: str | None = None) -> str:
    """``Generator-bound``, ``Balanced``, ``Too early to judge``."""
    if outcome in ("", "unknown"):
        return _UNKNOWN.get(cause or "", "No verdict yet")
    return outcome.replace("_", "-").capitalize()


def because(cause: str | None) -> str:
    """``KV capacity``; empty without a cause."""
    return _CAUSES.get(cause or "", cause or "").replace("_", " ").replace("kv ", "KV ")


def named(outcome: str, cause: str | None) -> str:
    """``Generator-bound (long tail)``: both, for where there is room."""
    reason = because(cause) if outcome not in ("", "unknown") else ""
    return word(outcome, cause) + (f" ({reason})" if reason else "")


def reason(limiter: Limiter) -> str:
    """``KV capacity``: its cause; without one its outcome."""
    found = because(limiter.cause)
    return found[:1].upper() + found[1:] if found else word(limiter.outcome)


def confidence(verdict: Verdict) -> str:
    """``high confidence``; nothing for a verdict that has none."""
    if verdict.confidence <= 0:
        return ""
    return next(label for least, label in _CONFIDENCE if verdict.confidence >= least) + " confidence"


def why(verdict: Verdict) -> dict[str, list[str]] | None:
    """What the verdict rests on, and what it lacks; None where there is nothing."""
    found = {
        "evidence": [tight(one.text) for one in verdict.evidence if one.text],
        "doubts": [tight(one) for one in verdict.disagreements],
        "missing": [tight(one) for one in verdict.missing],
        "lacks": [tight(one) for one in verdict.advice_lacks],
    }
    return found if any(found.values()) else None


def contradictions(verdict: Verdict) -> tuple[str, ...]:
    """Numbers that contradict each other, a sentence each."""
    return tuple(_contradiction(one) for one in verdict.contradictions)


def _contradiction(found: Contradiction) -> str:
    """The sentence with both numbers: ``61% reported, 22% predicted``; where it names none, they follow it."""
    message = tight(found.text)
    if len(re.findall(r"\d+(?:\.\d+)?", message)) >= len(found.values):
        return message
    figures = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in found.values.items())
    return f"{message} ({figures})"


def advised(one: Advice) -> str:
    """``Raise the rollouts in flight from 330 to 660. 1.2x to 1.9x``: a change with its gain."""
    cost = {"restart": ", needs a restart", "money": ", costs money"}.get(one.cost, "")
    return tight(f"{one.text} Gain {one.gain[0]:.2g}× to {one.gain[2]:.2g}×{cost}." if one.gain else one.text)


def simulated(advice: Advice) -> str:
    """The query of What-if for a change, ``concurrency=660``; empty where it has no such change."""
    if advice.after is None:
        return ""
    lever, before, after = advice.lever, advice.before, advice.after
    if lever in _SLIDERS:
        return f"{_SLIDERS[lever]}={after:g}" if after < _EXACT else f"{_SLIDERS[lever]}={after:.0f}"
    if lever == "oversampling":
        # The advice counts the surplus as a share of what begins, What-if what begins per rollout that is kept.
        return f"oversampling={1 / (1 - after):.4g}" if after < 1 else ""
    if lever in _MOVES and before is not None:
        name, sign = _MOVES[lever]
        return f"{name}={sign * (after - before):.0f}"
    return ""


# Lever of the advice -> change of What-if: its new value, or by how much it changes.
_SLIDERS = {
    "rollouts_in_flight": "concurrency", "max_staleness": "max_staleness", "group_filter": "zero_advantage",
    "curriculum": "zero_advantage", "response_length": "max_response_tokens",
}  # fmt: skip
_MOVES = {
    "gpu_split_generator": ("move_gpus", 1),
    "gpu_split_trainer": ("move_gpus", -1),
    "engines": ("add_engines", 1),
}
# From here on `g` writes an exponent.
_EXACT = 100_000


def beyond(verdict: Verdict) -> str:
    """What limits next, once the first limiter is removed; empty where nothing does."""
    found = verdict.next
    if found is None:
        return ""
    gain = f", up to {found.gain:.2g}× overall" if found.gain > 1.0 else ""
    limit = f"Next limit: {named(found.outcome, found.cause).lower().replace('kv ', 'KV ')}{gain}."
    return f"{limit} {_sentence(tight(found.text))}".strip()


def _sentence(clause: str) -> str:
    """With a capital letter, except for a name such as ``p95``."""
    return clause[:1].upper() + clause[1:] if clause[1:2].isalpha() or clause[1:2] == " " else clause


def ribbon(reader: Reader, run: str, span: Span, shared: TimedCache) -> View:
    """Keys ``v.*`` for the time shown, as read a few seconds ago at most."""
    columns = grid(span)

    def read() -> list[VerdictSpan]:
        return reader.verdicts.spans(run, columns.start, columns.end, MOST + 1)

    return ribbon_cells(shared.get(("verdicts", run, columns), columns.keep_seconds, read))


def ribbon_cells(spans: Sequence[VerdictSpan]) -> View:
    """``verdicts.rows``: [[start, end or None, colour, word, cause, summary], ...], oldest first; ``.note``: how
    many; ``verdicts.s``: ``none`` where there are none."""
    shown = spans[-MOST:]
    rows = [
        [one.start, one.end, colour(one.outcome), word(one.outcome, one.cause), _cause(one), tight(one.summary)]
        for one in shown
    ]
    changes = len(spans) - 1
    more = "at least " if len(spans) > MOST else ""
    plural = "" if changes == 1 else "s"
    several = f"{more}{changes:,} change{plural}"
    count = several if changes > 0 else "no change"
    replayed = "partly reconstructed from logs" if any(one.replayed for one in shown) else ""
    return {
        "verdicts.rows": rows,
        "verdicts.note": joined(count, replayed) if rows else "",
        "verdicts.s": "some" if rows else "none",
    }


def _cause(one: VerdictSpan) -> str:
    return because(one.cause) if one.outcome != "unknown" else ""
