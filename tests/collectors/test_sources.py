"""Which log of a directory is read: the best, kept while it lives, and the next one only when it is read out."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from collectors.formats import console, jsonl
from collectors.formats.rows import MAX_ENTRIES, Logged
from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers import slime
from collectors.training_logs.model import Framework, Key
from collectors.training_logs.sources import PEEK
from collectors.training_logs.tail import collector_of
from collectors.transport import bytetail
from tests.collectors._reading import TESTDATA

COLLECTOR = collector_of(
    Framework(
        name="x", reads="x", versions="x", keys={"r": Key("reward_mean")}, marks=("r",),
        sinks=tuple(
            jsonl.sink((pattern,), lambda row: Logged({"r": row["r"]}, row["n"], 1e9 + row["n"]), name=pattern)
            for pattern in ("*.best", "*.log")
        ),
    )
)  # fmt: skip


def write(path: Path, first: int, last: int, at: float) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"n": n, "r": n}) + "\n" for n in range(first, last + 1))
    os.utime(path, (at, at))


def read(path: Path, cursor: object = None, rows: int = 1000) -> Reading:
    assert COLLECTOR.tail is not None
    return COLLECTOR.tail(path, json.loads(json.dumps(cursor or {})), Limits(tail_rows=rows), 2e9)


def steps(reading: Reading) -> list[int | None]:
    return [sample.step for sample in reading.samples]


def test_the_best_sink_is_read_and_only_it(tmp_path: Path) -> None:
    write(tmp_path / "a.log", 1, 3, 500)
    write(tmp_path / "b.best", 1, 2, 100)
    assert steps(read(tmp_path)) == [1, 2]


def test_a_newer_log_is_taken_when_the_old_one_is_read_out(tmp_path: Path) -> None:
    write(tmp_path / "a.log", 1, 4, 100)
    first = read(tmp_path, rows=3)
    assert (steps(first), first.more) == ([1, 2, 3], True)
    write(tmp_path / "b.log", 5, 6, 200)
    rest = read(tmp_path, first.cursor)
    assert steps(rest) == [4]
    assert steps(read(tmp_path, rest.cursor)) == [5, 6]


def test_two_runs_side_by_side_are_not_read_by_turns(tmp_path: Path) -> None:
    write(tmp_path / "a.log", 1, 2, 100)
    cursor = read(tmp_path).cursor
    write(tmp_path / "b.log", 3, 4, 200)
    cursor = read(tmp_path, cursor).cursor
    write(tmp_path / "a.log", 9, 9, 300)
    again = read(tmp_path, cursor)
    assert steps(again) == []
    write(tmp_path / "b.log", 5, 5, 400)
    assert steps(read(tmp_path, again.cursor)) == [5]


def test_a_log_that_is_gone_gives_way(tmp_path: Path) -> None:
    write(tmp_path / "a.log", 1, 2, 100)
    cursor = read(tmp_path).cursor
    (tmp_path / "a.log").unlink()
    write(tmp_path / "b.log", 3, 3, 50)
    assert steps(read(tmp_path, cursor)) == [3]


def test_a_copy_in_a_logs_place_is_that_log(tmp_path: Path) -> None:
    """rsync and mv put a grown copy in its place: other inode, the same rows."""
    write(tmp_path / "a.log", 1, 2, 100)
    cursor = read(tmp_path).cursor
    (tmp_path / "copy").write_bytes((tmp_path / "a.log").read_bytes())
    write(tmp_path / "copy", 3, 3, 200)
    (tmp_path / "copy").replace(tmp_path / "a.log")
    again = read(tmp_path, cursor)
    assert (steps(again), again.events) == ([3], ())


def test_a_pipe_by_a_logs_name_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.best")
    write(tmp_path / "b.log", 1, 1, 100)
    assert steps(read(tmp_path)) == [1]
    with pytest.raises(ScrapeError, match="not a regular file"):
        bytetail.read(tmp_path / "a.best", {}, Limits())


def test_a_folder_of_many_files_hides_no_log_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(MAX_ENTRIES + 200):
        (tmp_path / "a" / f"{number}.parquet").touch()
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "x.log", 1, 1, 100)
    assert steps(read(tmp_path)) == [1]


NOISE = "(SGLangEngine pid=7) [2026-11-21 08:00:00] INFO - loading weights, capturing graphs, and so on\n"


@pytest.mark.parametrize(("before", "after"), [(5.0, 0.0), (5.0, 0.4), (0.0, 5.0)], ids=["end", "near the end", "head"])
def test_a_log_behind_megabytes_of_others_text_is_known(tmp_path: Path, before: float, after: float) -> None:
    said = (TESTDATA / "slime" / "sync_console" / "console.log").read_text()
    parts = [NOISE * int(size * 1e6 / len(NOISE)) for size in (before, after)]
    log = tmp_path / "train.log"
    log.write_text(parts[0] + said + parts[1])
    assert slime.COLLECTOR.matches_path is not None
    assert slime.COLLECTOR.matches_path(log) == "console train.log with rollout/response_len/mean"


def test_steps_between_megabytes_of_others_text_are_met(tmp_path: Path) -> None:
    """A megabyte in the middle of nine: one of the places that are looked at lies in it."""
    said = (TESTDATA / "slime" / "sync_console" / "console.log").read_text()
    half = NOISE * int(4e6 / len(NOISE))
    (tmp_path / "train.log").write_text(half + said * (1 + 1_000_000 // len(said)) + half)
    assert slime.COLLECTOR.matches_path is not None
    assert slime.COLLECTOR.matches_path(tmp_path) is not None


def test_places_do_not_overlap_and_reach_the_end() -> None:
    for size in (PEEK.tail_bytes + 1, PEEK.tail_bytes + console.END_BYTES + 9, 1 << 22, 1 << 31):
        places = list(console._sections(PEEK.tail_bytes, size))
        assert places[0][0] >= PEEK.tail_bytes and sum(places[-1]) == size
        assert all(sum(one) <= other[0] for one, other in pairwise(places))
        assert sum(length for _, length in places) <= console.END_BYTES + console.SECTIONS * console.SECTION_BYTES * 1.2
