"""What the overview shows of a status: its cards and charts, the answer, the actors and the cost."""

from collections.abc import Mapping

from dashboard.charts.panels import CARDS, PANELS
from dashboard.pages.overview.banner import banner
from dashboard.pages.overview.cost import cost
from dashboard.pages.overview.flow import flow
from dashboard.widgets import card, chart
from dashboard.widgets.base import Infos
from dashboard.widgets.status import StatusFacts, View


def view(facts: StatusFacts, infos: Infos) -> View:
    """The overview's cells for a status."""
    cells = (
        card.cells(card.bind_all(CARDS, facts, infos)) | chart.cells(chart.bind_all(PANELS, facts, infos)) | flow(facts)
    )
    first, panels = FIRST_SHOWN.get(facts.status.verdict.outcome if facts.present else "", ((), ()))
    cells["first"] = {"cards": list(first), "panels": list(panels)}
    return cells | {"answer": banner(facts), "cost": cost(facts)}


FIRST_SHOWN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "generator_bound": (("kv", "wait", "queue"), ("requests", "kv", "steps")),
    "sandbox_bound": (("spinup", "wait", "queue"), ("spinup", "steps", "queue")),
    "reward_bound": (("wait", "queue"), ("steps", "queue")),
    "curriculum_bound": (("zero", "length"), ("zero", "reward", "steps")),
    "orchestrator_bound": (("queue", "staleness", "wait"), ("queue", "requests", "staleness")),
}
"""Outcome of the verdict -> cards, and charts, that are shown first."""
