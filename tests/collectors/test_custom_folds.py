"""Keys that meet in one metric, gradients that are no numbers, logs beside the one that is read: of a user's table."""

import json
from pathlib import Path

import pytest

from collectors.model import Limits, Reading
from collectors.trainers import custom
from collectors.training_logs import maps as training_logs_maps

WAIT = {"key": "clock/wait_.*", "metric": "trainer_wait_seconds"}
NORM = {"key": "gn.*", "metric": "gradient_norm"}


def read(path: Path, maps: list[dict], cursor: object = None, **options: str) -> Reading:
    tail = custom.configured({"map": json.dumps(maps), **options}).tail
    assert tail is not None
    return tail(path, json.loads(json.dumps(cursor or {})), Limits(), 2_000.0)


def write(path: Path, *rows: dict) -> Path:
    with path.open("a") as file:
        file.writelines(json.dumps({"ts": 1000 + row["step"], **row}) + "\n" for row in rows)
    return path


def last(reading: Reading, metric: str) -> dict[int | None, float]:
    """By step; of several words on one the last, as it is stored."""
    return {one.step: one.value for one in reading.samples if one.metric == metric}


def test_phases_of_several_keys_add_up(tmp_path: Path) -> None:
    """Also where the second comes in a row of its own, in another call."""
    log = write(tmp_path / "a.jsonl", {"step": 1, "clock/wait_gen": 1, "clock/wait_buf": 2})
    write(log, {"step": 2, "clock/wait_gen": 4})
    first = read(log, [WAIT])
    assert last(first, "trainer_wait_seconds") == {1: 3.0, 2: 4.0}
    assert (first.dropped, first.origins) == (0, {"trainer_wait_seconds": "clock/wait_buf, clock/wait_gen"})
    write(log, {"step": 2, "clock/wait_buf": 0.5})
    assert last(read(log, [WAIT], first.cursor), "trainer_wait_seconds") == {2: 4.5}


@pytest.mark.parametrize("order", [("gn_a", "gn_b"), ("gn_b", "gn_a")])
def test_two_keys_for_one_metric_are_told(tmp_path: Path, order: tuple[str, str]) -> None:
    values = {"gn_a": 1.0, "gn_b": 9.0}
    log = write(tmp_path / "a.jsonl", {"step": 1} | {key: values[key] for key in order})
    reading = read(log, [NORM])
    assert last(reading, "gradient_norm") == {1: 1.0}
    assert reading.origins["gradient_norm"] == "gn_a"
    assert (reading.dropped, reading.why_dropped) == (
        1,
        "two keys for one metric (gradient_norm): gn_a, gn_b: write a narrower pattern, "
        "or fold = sum, mean, max, first in the map",
    )


@pytest.mark.parametrize(("fold", "value"), [("sum", 10.0), ("mean", 5.0), ("max", 9.0), ("first", 1.0)])
def test_a_fold_says_how(tmp_path: Path, fold: str, value: float) -> None:
    log = write(tmp_path / "a.jsonl", {"step": 1, "gn_b": 9, "gn_a": 1})
    reading = read(log, [NORM | {"fold": fold}])
    assert (last(reading, "gradient_norm"), reading.dropped) == ({1: value}, 0)


def test_a_fold_that_cannot_be() -> None:
    said: list[str] = []
    rows = [NORM | {"fold": "median"}, NORM, {"key": "other", "metric": "gradient_norm", "fold": "max"}]
    training_logs_maps.check(rows, lambda where, words: said.append(f"{where} {words}"))
    assert said == [
        "[0] fold: must be one of sum, mean, max, first",
        "[2] fold: another entry for gradient_norm has a different fold: use the same fold in both",
    ]


def test_a_gradient_that_is_no_number_is_counted(tmp_path: Path) -> None:
    """As a number, as a word, and infinite; null and a text say nothing, nor does a row without it."""
    told = [0.5, float("nan"), "NaN", float("-inf"), None, "n/a"]
    rows = [{"step": step, "gn": value} for step, value in enumerate(told, 1)]
    reading = read(write(tmp_path / "a.jsonl", *rows, {"step": 7, "x": 1}), [NORM])
    assert last(reading, "gradient_norm") == {1: 0.5}
    assert last(reading, "gradient_nonfinite") == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert reading.unmapped == {"x": 1}


def test_who_counts_them_himself_is_believed(tmp_path: Path) -> None:
    maps = [NORM, {"key": "bad", "metric": "gradient_nonfinite"}]
    reading = read(write(tmp_path / "a.jsonl", {"step": 1, "gn": float("nan"), "bad": 0}), maps)
    assert last(reading, "gradient_nonfinite") == {1: 0.0}


def test_the_named_time_is_no_unmapped_key(tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", {"step": 1, "at": 1500, "gn": 1, "new": 1})
    reading = read(log, [NORM], time_key="at")
    assert (reading.samples[0].ts, reading.unmapped) == (1500.0, {"new": 1})


def test_a_second_log_is_told(tmp_path: Path) -> None:
    write(tmp_path / "eval.jsonl", {"step": 1, "gn": 7})
    write(tmp_path / "train.jsonl", {"step": 1, "gn": 1})
    reading = read(tmp_path, [NORM])
    one, other = sorted(("eval", "train"), key=lambda name: f"jsonl {name}" not in reading.reader)
    words = f"jsonl {one}.jsonl (the newest; not read: {other}.jsonl: give the file itself as the path)"
    assert reading.reader == words
    assert read(tmp_path / "train.jsonl", [NORM]).reader == "jsonl train.jsonl"
