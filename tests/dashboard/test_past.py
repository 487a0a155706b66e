"""A page that shows a past time range: verdict and numbers are as of its end."""

from typing import Any

from dashboard.callbacks import cells
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from tests.dashboard import fake
from tests.dashboard.fake import NOW, signal
from tests.dashboard.fake_verdicts import span
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

RUN = "past-run"
AT = NOW - 1800


def reader() -> MemoryReader:
    made = fake.reader()
    made.add_run(RUN)
    made.append(RUN, signal("trainer_wait_ratio", 0.48, "ratio", "critical"), [(AT - 30, 0.25), (NOW - 5, 0.48)])
    made.append(RUN, signal("queue_batches", 2.0, "batches"), [(AT - 5, 0.5), (NOW - 5, 2.0)])
    made.append(RUN, signal("kv_cache_usage_ratio", 0.98, "ratio", "critical"), [(NOW - 5, 0.98)])
    made.set_verdict(
        RUN,
        {"outcome": "generator_bound", "cause": "kv_capacity", "confidence": 0.9, "summary": "now", "as_of": NOW},
        span(2400, 1200, "sandbox_bound", "spin_up", "Sandboxes limit the run"),
        span(1200, None, "generator_bound", "kv_capacity", "now"),
    )
    return made


def described(at: float | None) -> dict[str, Any]:
    page = by_key("overview")
    assert page is not None
    return shown(cells(page, Scope(reader(), RUN, at=at)))


def test_banner_and_cards_describe_the_end_of_the_range() -> None:
    found = described(AT)
    banner = ("Sandbox-bound", "sandbox", "spin up", "The trainer waited ", "25%", " of each step", "as of", AT)
    assert (
        tuple(
            found[f"answer.{key}"]
            for key in ("chip", "chip_state", "cause", "before", "figure", "after", "at_word", "at")
        )
        == banner
    )
    # 0.25 lies between watch (0.15) and critical (0.40); 0.5 batches are below critical (0.6).
    assert (found["card.wait.figure"], found["card.wait.state"]) == ("25", "watch")
    assert (found["card.queue.figure"], found["card.queue.state"]) == ("0.5", "critical")
    assert (found["card.kv.figure"], found["card.kv.state"], found["card.kv.note"]) == (
        "–",
        "unknown",
        "no value at that time",
    )
    assert found["chart.steps.state"] == "unknown" and found["answer.advice"] == []
    assert found["brief_alerts.sum"] == "No active alerts now"


def test_the_present_and_a_range_that_has_just_ended_show_the_present() -> None:
    for at in (None, NOW - 5):
        found = described(at)
        assert (found["answer.chip"], found["card.wait.figure"], found["card.kv.figure"]) == (
            "Generator-bound",
            "48",
            "98",
        )


def test_values_older_than_their_cadence_are_not_shown() -> None:
    # The newest point before is 65 s old: a value that is derived every 5 s is missing by then.
    assert described(AT + 60)["card.queue.figure"] == "–"
