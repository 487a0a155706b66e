"""What the overview shows of a status: its cards and charts, the answer, the actors and the cost."""

from collections.abc import Mapping

from msgspec import structs

from dashboard.charts.panels import CARDS, PANELS
from dashboard.pages.overview.banner import banner
from dashboard.pages.overview.cost import cost
from dashboard.pages.overview.flow import flow
from dashboard.widgets import card, chart
from dashboard.widgets.base import Infos
from dashboard.widgets.card import CardNow
from dashboard.widgets.status import StatusFacts, View


def view(facts: StatusFacts, infos: Infos) -> View:
    """The overview's cells for a status."""
    cards = card.bind_all(CARDS, facts, infos)
    cards |= _marked(facts, cards)
    cells = card.cells(cards) | chart.cells(chart.bind_all(PANELS, facts, infos)) | flow(facts)
    first, panels = FIRST_SHOWN.get(facts.status.verdict.outcome if facts.present else "", ((), ()))
    cells["first"] = {"cards": list(first), "panels": list(panels)}
    return cells | {"answer": banner(facts), "cost": cost(facts)}


CARD_OF = {
    "kv_capacity": "kv", "preemption": "kv", "drift": "length", "spin_up": "spinup", "starting_limit": "spinup",
    "quota": "spinup", "init_failures": "spinup", "too_easy": "zero", "too_hard": "zero",
}  # fmt: skip
"""Cause of a verdict -> the card that shows it."""


def _marked(facts: StatusFacts, cards: Mapping[str, CardNow]) -> dict[str, CardNow]:
    """Red marks the limiter: the card that shows it, which by its bands alone may look healthy. What waits for the
    limiter is no second problem: its cards are symptoms.
    """
    verdict = facts.status.verdict
    if not facts.present or not verdict.named or verdict.outcome == "balanced":
        return {}
    limiter = CARD_OF.get(verdict.cause or "", "")
    found = {
        key: structs.replace(cards[key], state="watch", word="Symptom")
        for key in SYMPTOMS.get(verdict.outcome, ())
        if cards[key].state == "critical" and key != limiter
    }
    if limiter and cards[limiter].value is not None:
        found[limiter] = structs.replace(cards[limiter], state="critical", word="The limit")
    return found


_WAITING = ("wait", "queue")
SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "generator_bound": _WAITING,
    "sandbox_bound": _WAITING,
    "reward_bound": _WAITING,
    "orchestrator_bound": _WAITING,
    "trainer_bound": ("queue", "staleness", "kv"),
    "overhead_bound": ("queue", "staleness", "kv"),
}
"""Outcome of the verdict -> cards that show what follows from it."""


FIRST_SHOWN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "generator_bound": (("kv", "wait", "queue"), ("requests", "kv", "steps")),
    "sandbox_bound": (("spinup", "wait", "queue"), ("spinup", "steps", "queue")),
    "reward_bound": (("wait", "queue"), ("steps", "queue")),
    "curriculum_bound": (("zero", "length"), ("zero", "reward", "steps")),
    "orchestrator_bound": (("queue", "staleness", "wait"), ("queue", "requests", "staleness")),
}
"""Outcome of the verdict -> cards, and charts, that are shown first."""
