"""The Trainer page as cells: the answer, single steps, the last against the median, learning, synchronous runs."""

from typing import Any

import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.pages.trainer import steps
from dashboard.shell.page import Scope
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from server.query.types import EventInfo, StepInfo
from tests.dashboard import fake_actors as actors
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

HOUR = Span(actors.NOW - 3600, actors.NOW, follow=True)


@pytest.fixture
def reader() -> MemoryReader:
    return actors.reader(600)


def cells(reader: MemoryReader, run: str = actors.RUN, span: Span | None = HOUR) -> dict[str, Any]:
    page = by_key("trainer")
    assert page is not None
    return shown(of_page(page, Scope(reader, run, span=span)))


def rows(found: dict[str, Any], prefix: str) -> list[Any]:
    """The values of the rows, without their names."""
    return [list(found[f"{prefix}{i}"].values()) for i in range(200) if f"{prefix}{i}" in found]


def test_what_the_trainer_does(reader: MemoryReader) -> None:
    found = cells(reader)
    expected = {
        "head.trainer.before": "The trainer waits ", "head.trainer.figure": "60%",
        "head.trainer.after": " of each step", "head.trainer.state": "critical",
        "head.trainer.text": "Not the limit: the run is generator-bound (KV capacity) · "
        "Training 6.3 samples/s; it could handle 15.8",
        "trainer.sync": "", "trainer.step": "Last 10 steps, mean 40.5 s",
        "head.trainer.split.wait": "Wait 59%", "head.trainer.split.compute": "Train 35%",
        "last_step.words": "Step 140 took 70 s, 75% above the median of 40 s", "last_step.s": "watch",
        "card.tr_step.figure": "40.5", "card.tr_step.note": "last 70 s · median 40 s", "card.tr_step.word": "Watch",
        "card.tr_mfu.figure": "22", "card.tr_mfu.note": "while computing", "card.tr_sync.note": "of the step 3.7%",
        "card.tr_rate.note": "capacity 15.8 samples/s",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected


def test_a_trainer_that_is_the_limit_and_one_with_broken_gradients(reader: MemoryReader) -> None:
    reader.set_verdict(actors.RUN, actors.VERDICT | {"outcome": "trainer_bound", "cause": "compute"})
    assert cells(reader)["head.trainer.text"].startswith("The trainer is the limit: compute · Training")
    reader.append(actors.RUN, actors.one("gradient_nonfinite_steps", "steps", "critical"), [(actors.NOW, 2.0)])
    found = cells(reader)
    sentence = "".join(found[f"head.trainer.{part}"] for part in ("before", "figure", "after"))
    assert (sentence, found["head.trainer.state"]) == ("Non-finite gradients in 2 of the last 10 steps", "critical")


def test_steps_one_by_one(reader: MemoryReader) -> None:
    found = cells(reader)
    bars = rows(found, "step_bars.")
    assert len(bars) == 40 and [bar[0] for bar in bars[-2:]] == [139, 140]
    # wait, generation, compute, weight sync, checkpoint, evaluation, other: what is not reported is no zero.
    assert bars[-2][1] == [24.0, None, 14.0, 1.5, 0.0, None, 0.5] and bars[-1][3] == 70.0
    assert bars[-11][0] == 130 and bars[-11][1][4] == 5.0
    assert (found["step_bars.median"], found["step_bars.words"]) == (40.0, "median 40 s")


def test_last_step_against_the_median(reader: MemoryReader) -> None:
    found = rows(cells(reader), "last_step.")
    assert found[0] == ["Wait", "54 s", "24 s", 100.0, 44.4, "watch", "orange"]
    assert found[1] == ["Compute", "14 s", "14 s", 25.9, 25.9, "ok", "blue"]
    # Most steps have no checkpoint: one that has is not unlike the others.
    assert found[3] == ["Checkpoint", "5 s", "0 s", 9.3, 0.0, "ok", "gold"]
    assert [row[0] for row in found] == ["Wait", "Compute", "Weight sync", "Checkpoint", "Other"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Nobody tells what computing took: the rest of the step.
        ({"trainer_step_seconds": 10.0, "trainer_wait_seconds": 4.0}, {"wait": 4.0, "compute": 6.0}),
        # An evaluation is part of the rest; a wait of a synchronous run is its generation.
        ({"trainer_eval_seconds": 3.0, "trainer_other_seconds": 4.0, "trainer_compute_seconds": 1.0},
         {"compute": 1.0, "eval": 3.0, "other": 1.0}),
        ({"generation_seconds": 5.0, "trainer_wait_seconds": 5.0, "trainer_compute_seconds": 1.0},
         {"generation": 5.0, "compute": 1.0}),
        ({"trainer_step_seconds": 10.0}, {}),
    ],
)  # fmt: skip
def test_phases_of_a_step(values: dict[str, float], expected: dict[str, float]) -> None:
    assert steps.phases(StepInfo(1, 0.0, 0, values)) == expected


def test_table_of_the_last_twenty(reader: MemoryReader) -> None:
    found = cells(reader)
    table = rows(found, "step_rows.")
    assert len(table) == 20 and [row[0] for row in table[:2]] == ["140", "139"]
    assert table[1][2:] == [
        "40", ["24", "", "14", "1.5", "0", "", "0.5"], "256", "680k", "2.5", "0.5", "0.3", False,
    ]  # fmt: skip
    assert table[0][9] is True
    told = {phase["label"]: phase["reported"] for phase in found["step_rows.phases"]}
    assert told == {
        "Wait": True,
        "Generation": False,
        "Compute": True,
        "Weight sync": True,
        "Checkpoint": True,
        "Evaluation": False,
        "Other": True,
    }


def test_learning_of_single_steps(reader: MemoryReader) -> None:
    found = cells(reader)
    learnt = {row[0]: row[1:3] for row in rows(found, "learning.")}
    assert learnt == {
        "Gradient norm": ["0.3", "0.3"], "Clipped tokens": ["0.2%", "0.2%"], "Learning rate": ["1.0e-06", "1.0e-06"],
        "Mismatch KL": ["0.002", "0.002"],
    }  # fmt: skip
    assert (
        found["learning.none"]
        == "Not logged: log-prob difference, importance ratio, reference KL, effective samples, loss."
    )
    reader.put_steps(actors.RUN, actors.step(141, gradient_nonfinite=1.0))
    found = cells(reader)
    assert found["learning.bad"] == "1 of the last 40 steps had a non-finite gradient."
    assert found["step_rows.0"]["gradient"] == "non-finite"


def test_restarts_checkpoints_and_versions(reader: MemoryReader) -> None:
    reader.records(actors.RUN).events = [
        EventInfo(actors.NOW - 2000, "checkpoint", "c", "trainer step 90"),
        EventInfo(actors.NOW - 900, "restart", "r", "life 1"),
        *(EventInfo(actors.NOW - 41.0 * 2 * i, "weights_published", f"w{i}", "", 412 - i) for i in range(1, 20)),
    ]
    found = cells(reader)
    assert rows(found, "restarts.") == [
        ["Restarted", "life 1", round(actors.NOW - 900)], ["Checkpoint", "trainer step 90", round(actors.NOW - 2000)],
    ]  # fmt: skip
    assert (found["restarts.sum"], found["restarts.none"]) == ("1 restart · 1 checkpoint", "")
    assert found["restarts.updates"] == "19 versions in 39 steps: 2.05 steps per version"
    # A step of another life stands in the same row of bars.
    reader.put_steps(actors.RUN, structs.replace(actors.step(141), life=1))
    assert [bar[2] for bar in rows(cells(reader), "step_bars.")[-2:]] == [0, 1]


def test_a_synchronous_run_has_no_wait(reader: MemoryReader) -> None:
    found = cells(reader, actors.SYNC)
    assert (found["head.trainer.before"], found["head.trainer.figure"], found["head.trainer.state"]) == (
        "Generation takes ",
        "40%",
        "ok",
    )
    assert found["trainer.sync"] == (
        "Wait: not applicable. Synchronous run: the trainer and the generator take turns, so neither waits for a queue."
    )
    assert found["card.tr_wait.state"] == "not_applicable" and found["head.trainer.split.wait"] == "Generate 40%"
    assert found["chart.tphase.0.label"] == "generation"
    assert [row[0] for row in rows(found, "last_step.")] == ["Generation", "Compute", "Weight sync"]


def test_nothing_known_is_said_and_never_zero(reader: MemoryReader) -> None:
    found = cells(reader, actors.BARE)
    assert (found["head.trainer.before"], found["head.trainer.state"], found["last_step.words"]) == (
        "No trainer is monitored",
        "unknown",
        "",
    )
    assert found["head.trainer.text"] == "Add the trainer's run directory or its metrics."
    assert found["step_bars.none"] == found["step_rows.none"] == "No step has been logged yet."
    assert found["last_step.none"] == "No step has been logged yet."
    assert found["card.tr_mfu.figure"] == "–" and found["card.tr_mfu.why"] == actors.NO_MFU
    assert found["chart.tmfu.why"] == actors.NO_MFU and found["head.trainer.split"] == []


def test_a_first_step_is_no_missing_step(reader: MemoryReader) -> None:
    """One step whose parts are not logged: no signal has a value yet."""
    reader.put_steps(actors.BARE, StepInfo(1, actors.NOW - 5, 0, {"trainer_step_seconds": 31.5}))
    found = cells(reader, actors.BARE)
    assert (found["head.trainer.before"], found["last_step.words"]) == ("Too few steps so far", "Step 1 took 31.5 s")
    assert found["last_step.none"] == "This trainer logs no parts of a step."
    assert cells(reader)["last_step.none"] == ""


def test_steps_are_read_when_one_came(reader: MemoryReader) -> None:
    page = by_key("trainer")
    assert page is not None
    now = [0.0]
    shared = TimedCache(lambda: now[0])
    for _ in range(3):
        of_page(page, Scope(reader, actors.RUN, span=HOUR, shared=shared))
    # For the page, and for the step at a time under the cursor.
    assert reader.calls.count(f"steps {actors.RUN}") == 2
    reader.append(actors.RUN, actors.one("trainer_step_seconds", "seconds"), [(actors.NOW + 40, 41.0)])
    # All browsers look at the run's state once a second.
    now[0] += 1.0
    of_page(page, Scope(reader, actors.RUN, span=HOUR, shared=shared))
    assert reader.calls.count(f"steps {actors.RUN}") == 3


def test_the_usual_is_of_the_steps_before() -> None:
    found = [StepInfo(i, 0.0, 0, {"trainer_step_seconds": value}) for i, value in enumerate((10.0, 20.0, 30.0, 100.0))]
    assert steps.usual(found, "trainer_step_seconds") == 20.0
    # Of two nobody can say what is usual.
    assert steps.usual(found[1:], "trainer_step_seconds") is None
