"""The cells of the Rollouts page, as tests of it read them."""

from typing import Any

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

HOUR = Span(made.NOW - 3600, made.NOW, True)


def view(reader: MemoryReader, run: str = made.ASYNC, search: str = "", span: Span = HOUR) -> dict[str, Any]:
    page = by_key("rollouts")
    assert page is not None
    return shown(of_page(page, Scope(reader, run, span=span, search=search)))


def ids(found: dict[str, Any], prefix: str = "rollout_rows") -> list[str]:
    name = "rollout_id" if prefix == "rollout_rows" else "group_id"
    return [found[f"{prefix}.r.{handle}"][name] for handle in found[f"{prefix}.order"]]
