"""Cards: one number with its state, its note and its small line. `assets/widgets/card.mjs` draws them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from dashboard.widgets.base import Infos, absent, drift_text, html, state_word
from dashboard.widgets.chart import fixed_limit
from dashboard.widgets.format import number, text
from dashboard.widgets.signal_lookup import Want
from dashboard.widgets.status import StatusFacts, View, first_clause, joined, worst
from server.query.types import SignalInfo, SignalNow


@dataclass(frozen=True, slots=True)
class Card:
    """One number with its state.

    Attributes:
        judges: other signals whose bands decide the state, too: the worst counts.
        window: what the number covers ("last 10 steps").
        drift: the behaviour whose drift is the card's first note (`drift_since_step{of}`).
    """

    key: str
    title: str
    colour: str
    wants: tuple[Want, ...]
    judges: tuple[Want, ...] = ()
    notes: tuple[tuple[str, Want], ...] = ()
    window: str = ""
    drift: str = ""
    # A limit of the run's configuration, as `Panel.limits` names it.
    limit: str = ""
    # Further notes, shown while they are beyond their bands.
    flags: tuple[tuple[str, Want], ...] = ()
    # Its small line shows the highest value of each bucket, not the mean.
    peaks: bool = False
    # Shown in place of the signal's unit: none for a count that the title names, "×" for a quotient.
    unit: str | None = None

    def find(self, signals: Sequence[SignalNow]) -> SignalNow | None:
        """The first candidate with a value, else the first that has a reason for its absence."""
        found = [s for want in self.wants if (s := want.explain(signals)) is not None]
        return next((s for s in found if s.value is not None), found[0] if found else None)


_SPIN_UP = "sandbox_spinup_latency_seconds"


class CardNow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a card shows; the browser formats the number.

    Attributes:
        value: None: there is none now, and ``note`` says why.
        state: ok, watch, critical, unknown or not_applicable.
        word: the state in a word; "" for a value that nothing judges.
        why: the whole of a reason of which ``note`` is the first clause.
        since: since when an alert on the card's signals has been firing, epoch seconds.
    """

    value: float | None = None
    unit: str = ""
    state: str
    word: str = ""
    window: str = ""
    note: str = ""
    why: str = ""
    since: float | None = None


def bind_all(cards: Sequence[Card], facts: StatusFacts, infos: Infos) -> dict[str, CardNow]:
    """The cards of a page by key."""
    return {card.key: bind(card, facts, infos) for card in cards}


def bind(card: Card, facts: StatusFacts, infos: Infos) -> CardNow:
    """A card for a status."""
    found = card.find(facts.signals)
    judged = [one for want in card.judges if (one := want.explain(facts.signals)) is not None]
    state = _state(found, judged)
    # A value without bands is not "OK", only known.
    plain = state == "ok" and not any(_banded(one, infos) for one in (found, *judged))
    word, since = "" if plain else state_word(facts, state), _alerting(card, facts)
    if found is not None and found.value is not None:
        state, word = _by_verdict(facts, found.signal, state, word)
    if found is None or found.value is None:
        why = found.why if found is not None else absent(card.wants[0].signal, infos)
        # A card has room for the problem; its tooltip and the charts below give the fix.
        return CardNow(state=state, word=word, note=first_clause(why), why=why, since=since)
    return CardNow(
        value=found.value,
        unit=found.unit if card.unit is None else card.unit,
        state=state,
        word=word,
        window=card.window,
        note=_note(facts, card, found, judged, infos),
        since=since,
    )


def _state(found: SignalNow | None, judged: Iterable[SignalNow]) -> str:
    """The worst of the value's state and the judging signals' states."""
    if found is None:
        return "unknown"
    if found.value is None:
        return found.state
    return worst((*(one.state for one in judged if one.value is not None), found.state))


def _banded(found: SignalNow | None, infos: Infos) -> bool:
    """Is there a value that a band judges?"""
    info = infos.get(found.signal) if found is not None and found.value is not None else None
    return info is not None and (info.watch is not None or info.critical is not None)


LIMIT_SIGNALS: Mapping[str, str] = {
    "kv_capacity": "kv_cache_usage_ratio", "preemption": "kv_cache_usage_ratio", "drift": "response_tokens",
    "spin_up": _SPIN_UP, "starting_limit": _SPIN_UP, "quota": _SPIN_UP, "init_failures": _SPIN_UP,
    "too_easy": "zero_advantage_ratio", "too_hard": "zero_advantage_ratio",
}  # fmt: skip
"""Cause of a verdict -> the signal that shows it."""
_STARVED = ("trainer_wait_ratio", "queue_samples_now", "queue_samples", "queue_batches")
_FULL = ("queue_samples_now", "queue_samples", "queue_batches", "staleness_versions", "kv_cache_usage_ratio")
SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound"), _STARVED),
    **dict.fromkeys(("trainer_bound", "overhead_bound"), _FULL),
}
"""Outcome of a verdict -> signals that show what follows from it."""


def _by_verdict(facts: StatusFacts, signal: str, state: str, word: str) -> tuple[str, str]:
    """Red marks the limiter, which by its bands alone may look healthy. What waits for it is no second problem."""
    verdict = facts.status.verdict
    if not facts.present or not verdict.named or verdict.outcome == "balanced":
        return state, word
    if LIMIT_SIGNALS.get(verdict.cause or "") == signal:
        return "critical", "The limit"
    if state == "critical" and signal in SYMPTOMS.get(verdict.outcome, ()):
        return "watch", "Symptom"
    return state, word


def _note(facts: StatusFacts, card: Card, found: SignalNow, judged: Iterable[SignalNow], infos: Infos) -> str:
    """The card's notes, else its bands."""
    drift = drift_text(facts, card.drift)[0] if card.drift else ""
    flags = [(word, want) for word, want in card.flags if _flagged(facts, want)]
    beside = joined(drift, *(_beside(facts, word, want) for word, want in (*card.notes, *flags)))
    limit = next((sentence for one in (found, *judged) if (sentence := _bands(infos.get(one.signal), one.state))), "")
    # Cards with a window are figures of the first screen, which show their limit, too.
    return joined(beside, fixed_limit(card.limit, facts), limit) if card.window else beside or limit


def _alerting(card: Card, facts: StatusFacts) -> float | None:
    """Since when an alert on the card's signals has been firing."""
    mine = {want.signal for want in (*card.wants, *card.judges)}
    alerts = facts.status.alerts if facts.present else ()
    return min((one.since for one in alerts if one.signal in mine and one.state == "firing"), default=None)


def _flagged(facts: StatusFacts, want: Want) -> bool:
    found = want.find(facts.signals)
    return found is not None and found.value is not None and found.state in ("watch", "critical")


def _beside(facts: StatusFacts, word: str, want: Want) -> str:
    found = want.find(facts.signals)
    if found is None or found.value is None:
        return ""
    plain = found.unit in ("requests", "tokens", "versions") and word
    value = number(found.value) if plain else text(found.value, found.unit)
    if found.labels.get("state") == word and word:
        return f"{value} {word}"
    shown = f"{word} {value}" if word else value
    return shown.replace("requests", found.labels.get("state", "requests"))


def _bands(info: SignalInfo | None, state: str) -> str:
    """The band that was crossed, or would be next."""
    if info is None:
        return ""
    sign = "≥" if info.higher_is_worse else "≤"
    bands = (("watch", info.watch), ("critical", info.critical))
    known = [f"{word} {sign} {text(band, info.unit)}" for word, band in bands if band is not None]
    return (known[-1] if state in ("watch", "critical") else known[0]) if known else ""


def cells(found: Mapping[str, CardNow]) -> View:
    """The cells of cards by key."""
    return {f"card.{key}": one for key, one in found.items()}


def element(card: Card) -> Any:
    """Its elements, which the browser fills from the cell ``card.KEY``."""
    alerting = html.Span(["alert ", html.Span(className="for"), " · "], className="alerting")
    return html.Section(
        [
            html.Div([html.H2(card.title), html.Span(className="pill")], className="row"),
            html.P([html.B(className="num"), html.Span(className="unit")], className="big"),
            html.P([alerting, html.Span(className="text")], className="note"),
            html.Div(
                [
                    html.Span(className="window"),
                    html.Div(className=f"spark c-{card.colour}", **{"data-spark": f"card.{card.key}"}),
                ],
                className="foot",
            ),
        ],
        className="card kpi",
        id=f"card-{card.key}",
    )
