"""prime-rl's episodes as they are written: file by file, in pieces, twice, and without end."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Consumption, Limits, Rollout
from collectors.rollouts.verifiers_rollouts import COLLECTOR
from tests.collectors.rollouts._episodes import BEGAN, configure, episode, group, shipped, trace, write
from tests.collectors.rollouts._verifiers import LATER, RUN, committed, exits, read
from tests.collectors.rollouts._written import merged, tailed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return committed(tmp_path)


def written(run: Path) -> list[tuple[Path, bytes, float]]:
    """The run as it came to be: file by file in their order, in pieces that end within lines."""
    pieces = []
    for step in (1, 2, 3):
        for kind, cohort in (("train", "all"), ("train", "effective"), ("eval", "all")):
            file = run / f"rollouts/step_{step}/{kind}/{cohort}/traces.jsonl"
            if file.is_file():
                data = file.read_bytes()
                cuts = [*range(0, len(data), 7_001), len(data)]
                name = file.relative_to(run)
                pieces += [(name, data[a:b], file.stat().st_mtime) for a, b in pairwise(cuts)]
    return pieces


def test_live_says_what_a_back_fill_says(run: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    configure(live)
    records: list[Rollout] = []
    cursor: Any = {}
    for name, data, at in written(run):
        file = live / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.write(data)
        os.utime(file, (at, at))
        # A batch is looked at only when nobody writes to it any more.
        settled = BEGAN + 20 if file.stat().st_size < (run / name).stat().st_size else LATER
        found, cursor, dropped = tailed(COLLECTOR, live, settled, cursor=cursor)
        records += found
        assert dropped == 0
    at_once, _, _ = tailed(COLLECTOR, run, LATER)
    assert len(at_once) == 20 + 4 + 4 + 6  # ended, used by two batches, left out
    assert sorted(records, key=repr) == sorted(at_once, key=repr)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_small_bites_lose_nothing(run: Path, size: int) -> None:
    small, _, _ = tailed(COLLECTOR, run, LATER, Limits(tail_rows=size))
    at_once, _, _ = tailed(COLLECTOR, run, LATER)
    assert small == at_once


def test_a_resumed_run_goes_back_over_removed_steps(run: Path) -> None:
    """prime-rl removes what is after its checkpoint: nobody waits of it any more, and the steps are written again."""
    _, cursor = read(run)
    assert set(cursor["waiting"]["groups"]) == {"c", "d"}
    for step in (2, 3):
        shutil.rmtree(run / f"rollouts/step_{step}")
    _, cursor = read(run, cursor)
    assert cursor["waiting"]["groups"] == {}
    again = group("n", 1, (1, 0, 1, 0), BEGAN + 500, step=2)
    write(run, 2, again)
    found, cursor = read(run, cursor)
    assert set(found) == {"n0", "n1", "n2", "n3"} and set(cursor["waiting"]["groups"]) == {"n"}
    write(run, 2, shipped(again, {"n0": 0.5}), cohort="effective", at=BEGAN + 600)
    write(run, 3, group("m", 2, (1,), BEGAN + 700))
    found = read(run, cursor)[0]
    assert found["n0"].consumptions == (Consumption(1, BEGAN + 600),) and exits(found) == {}


def test_a_file_that_is_written_anew_is_read_again_with_its_batch(run: Path) -> None:
    _, cursor = read(run)
    file = run / "rollouts/step_2/train/all/traces.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(reversed(lines)))
    found, cursor = read(run, cursor)
    assert set(found) == {f"{name}{n}" for name in "bc" for n in range(4)}
    assert found["b1"].consumptions == (Consumption(1, BEGAN + 250),)
    assert {name for one in cursor["waiting"]["groups"].values() for name in one["waiting"]} <= {"b0", "b3", "c2"}


def test_the_cursor_does_not_grow_with_the_run(tmp_path: Path) -> None:
    configure(tmp_path)
    cursor: Any = {}
    sizes = []
    for step in range(1, 40):
        used = group(f"u{step}-", step - 1, (1, 0, 0.5, 0.5), BEGAN + 90 * step)
        write(tmp_path, step, used)
        names = {f"u{step}-0": 0.5, f"u{step}-1": -0.5}
        write(tmp_path, step, shipped(used, names), cohort="effective", at=BEGAN + 90 * step + 80)
        found, cursor = read(tmp_path, cursor)
        sizes.append(len(json.dumps(cursor)))
        if step > 2:
            assert exits(found) == {f"u{step - 2}-{n}": "zero_advantage" for n in (2, 3)}
    assert len(cursor["files"]) == 16 and len(cursor["waiting"]["groups"]) == 2
    assert max(sizes[10:]) < 4_000


def test_what_is_no_episode_is_dropped_and_named(run: Path) -> None:
    file = run / "rollouts/step_3/train/all/traces.jsonl"
    with file.open("a") as opened:
        opened.write('{"id": "x"}\n[1]\n{"id":"y","env":{"id":"m"},"ok":true,"traces":[]}\n{"id":"half')
    reading = COLLECTOR.tail(run, {}, Limits(), LATER)  # type: ignore[misc]
    assert (reading.dropped, reading.more) == (2, False)
    assert "is not an episode of verifiers" in reading.why_dropped
    assert set(merged(reading.rollouts)) == set(read(RUN)[0])


def test_a_line_of_ten_megabytes_costs_no_object_per_token(tmp_path: Path) -> None:
    long = trace("t", 1.0, BEGAN)
    long["nodes"][3] |= {"token_ids": [151_643] * 400_000, "mask": [True] * 400_000, "logprobs": [-0.123456] * 400_000}
    write(tmp_path, 1, [episode("e", "g", 0, [long])])
    assert (tmp_path / "rollouts/step_1/train/all/traces.jsonl").stat().st_size > 8 << 20
    assert read(tmp_path)[0]["t"].loss_tokens == 400_060
