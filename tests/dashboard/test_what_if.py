"""The What-if page's cells: today, a change in words, bounds, and what is not known."""

from typing import Any

import pytest
from msgspec import structs

from dashboard.pages.what_if import data as what_if_data
from dashboard.pages.what_if.layout import PAGE
from dashboard.shell.page import Scope
from server.query.verdicts import NO_VERDICT
from server.query.what_if import FIGURES, MOST, Figure
from server.verdict.model import Advice
from tests.dashboard import fake_what_if as fakes
from tests.dashboard.fake import POOR
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown


@pytest.fixture
def reader() -> MemoryReader:
    return fakes.reader()


def cells(reader: MemoryReader, search: str = "", run: str = fakes.LONG) -> dict[str, Any]:
    return shown(what_if_data.cells(Scope(reader, run, search=search)))


def head(found: dict[str, Any]) -> str:
    return "".join(found[f"head.what_if.{part}"] for part in ("before", "figure", "after"))


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for key, row in found.items() if key.startswith("what_if_row.")}


def test_today(reader: MemoryReader) -> None:
    found = cells(reader)
    assert head(found) == "Now the trainer waits 29% of each step"
    assert (found["what_if.mode"], found["what_if.limit.now"], found["what_if.limit.then"], found["what_if.flip"]) == (
        "now", "generation (engines and sandboxes)", "", "same",
    )  # fmt: skip
    # 256 GPUs at 2 USD over 1.95 * 12,000 tokens/s; 64 GPUs idle 29.09% of the time
    assert rows(found)["usd_per_million_tokens"] == {
        "key": "usd_per_million_tokens", "title": "Cost per 1M trained tokens", "now": "$6.08", "then": "",
        "change": "", "state": "same", "why": "",
    }  # fmt: skip
    assert rows(found)["idle_usd_per_hour"]["now"] == "$37.24/h"
    assert "assumptions.0" not in found


def test_gpus_moved(reader: MemoryReader) -> None:
    found = cells(reader, "?run=x&move_gpus=8")
    assert head(found) == "Trainer wait would drop from 29% to 16%"
    shown = {
        key: [row[name] for name in ("title", "now", "then", "change", "state", "why")]
        for key, row in rows(found).items()
    }
    assert shown["wait_ratio"] == ["Trainer wait", "29%", "16%", "−13.5 points", "better", ""]
    assert shown["trained_samples_per_second"][1:4] == ["1.95 samples/s", "2.03 samples/s", "+4.17%"]
    assert shown["staleness_versions"][2:4] == ["1.5 versions", "no change"]
    assert shown["trainer_gpus"] == ["Trainer GPUs", "64 GPUs", "56 GPUs", "−12.5%", "same", ""]
    assert found["what_if_slider.move_gpus"] == {
        "low": -191, "high": 63, "step": 1, "today": 0, "value": 8, "unit": "GPUs", "needs": ""
    }  # fmt: skip
    # 2.40625 and 2.03125 on a scale of 2.75
    assert [(found[f"what_if_side.{i}"]["to"], found[f"what_if_side.{i}"]["limits"]) for i in (0, 1)] == [
        (87.5, False), (73.9, True),
    ]  # fmt: skip


def test_the_limiter_flips(reader: MemoryReader) -> None:
    found = cells(reader, "move_gpus=16")
    assert (found["what_if.limit.now"], found["what_if.limit.then"]) == (
        "generation (engines and sandboxes)",
        "the trainer",
    )
    assert found["what_if.flip"] == "flipped"
    assert [found[f"what_if_side.{i}"]["limits"] for i in (0, 1)] == [True, False]
    row = rows(found)["staleness_versions"]
    assert (row["then"], row["change"], row["state"]) == ("at most 4 versions", "up to +167%", "same")


def test_a_change_in_words() -> None:
    def said(key: str, unit: str, now: float, then: float) -> str:
        row = next(one for one in what_if_data.ROWS if one.key == key)
        return what_if_data._change(row, Figure(now, unit), Figure(then, unit))[0]

    rates = [said("trained_samples_per_second", "samples/s", 2.0, then) for then in (2.0005, 2.5, 5.9, 6.0, 24.5)]
    assert rates == ["no change", "+25%", "+195%", "× 3", "× 12.3"]
    assert [said("wait_ratio", "ratio", 0.5, then) for then in (0.5002, 0.49, 0.05)] == [
        "no change", "−1 points", "−45 points",
    ]  # fmt: skip


def test_bounds_in_words(reader: MemoryReader) -> None:
    found = cells(reader, "oversampling=2.2")
    assert head(found) == "Trainer wait could drop from 29% to as little as 19% (best case)"
    assert rows(found)["trained_samples_per_second"]["then"] == "at most 2.22 samples/s"
    assert rows(cells(reader, "oversampling=1"))["wait_ratio"]["then"] == "as little as 0%"


def test_what_is_not_known(reader: MemoryReader) -> None:
    found = cells(reader)
    assert rows(found)["useful_samples_per_second"] == {
        "key": "useful_samples_per_second", "title": "With a gradient", "now": "–", "then": "", "change": "",
        "state": "same", "why": "whether groups without a gradient are dropped before training",
    }  # fmt: skip
    assert found["missing.0"].endswith("[run.NAME.facts], or send rollout records")
    poor = cells(reader, "move_gpus=8", POOR)
    assert (poor["what_if.mode"], head(poor)) == ("none", "Current rates are unknown")
    assert poor["head.what_if.text"].startswith("Needed: how many samples the trainer takes per second: log step time")
    assert poor["what_if_slider.move_gpus"]["needs"] == "the trainer's GPUs: state trainer_gpus in [run.NAME.facts]"
    math = cells(reader, run=fakes.MATH)
    assert (math["what_if.mode"], math["head.what_if.text"]) == (
        "apart", "Synchronous run: trainer and generator take turns, so neither waits for the other at a queue.",
    )  # fmt: skip


def test_a_change_that_cannot_be_is_said_and_today_is_shown(reader: MemoryReader) -> None:
    found = cells(reader, "move_gpus=64")
    assert found["what_if.refused"] == (
        "Not possible: Move GPUs, 64: this run has 64 GPUs that train and 192 that generate, so -191 to 63. "
        "Showing the current values."
    )
    assert head(found) == "Now the trainer waits 29% of each step"


def test_every_change_has_a_slider_and_every_row_is_a_figure() -> None:
    assert set(what_if_data.ASKS) == set(MOST) == set(what_if_data.TITLES) == set(what_if_data.EXPLAINED)
    assert PAGE.asks == what_if_data.ASKS
    assert {row.key for row in (*what_if_data.ROWS, *what_if_data.CONDITIONAL_ROWS)} | {
        key for key, *_ in what_if_data.SIDES
    } == set(FIGURES)


def test_a_change_of_the_advice_names_its_range(reader: MemoryReader) -> None:
    """The same change has one range on every page: the one point of this estimate is in it."""
    one = Advice("rollouts_in_flight", 512.0, 640.0, "rollouts", (1.06, 1.34, 1.56))
    reader.set_verdict(fakes.LONG, structs.replace(NO_VERDICT, advice=(one,)))
    found = cells(reader, "concurrency=640")
    assert "The advice gives 1.06× to 1.56× trainable samples/s" in found["head.what_if.text"]
    assert "advice" not in cells(reader, "concurrency=650")["head.what_if.text"]


def test_two_changes_that_are_impossible_together_are_refused_as_one_sentence(reader: MemoryReader) -> None:
    found = cells(reader, "move_gpus=-150&add_engines=-23")["what_if.refused"]
    assert found.startswith("Not possible: moving GPUs and adding engines together leave the generator nothing.")
