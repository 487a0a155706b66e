"""AReaL's dumps and sessions, written as 1.0.4 writes them (workflow_executor.py, perf_tracer.py)."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Limits, Rollout, ScrapeError, Span
from collectors.rollouts import areal_rollouts
from collectors.rollouts.areal_rollouts import COLLECTOR
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts._written import merged, tailed

RUN = TESTDATA / "areal_rollouts" / "run"
BEGAN = 1_781_000_000.0
NOW = BEGAN + 10_000


def read(path: Path, cursor: Any = None, now: float = NOW, **limits: int) -> tuple[list[Rollout], Any, int]:
    return tailed(COLLECTOR, path, now, Limits(**limits), cursor)


def dump(
    root: Path, version: int, task: int, rewards: list[float], at: float, folder: str = "rollout", **other: Any
) -> Path:
    """A task's samples: 100 tokens of prompt, and 50 of answer more with each; the prompt has version -1."""
    file = root / folder / str(version) / f"{task}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        for index, reward in enumerate(rewards):
            row = {
                "task_id": task, "sample_idx": index, "seqlen": 150 + 50 * index, "prompt_len": 100, "head_version": -1,
                "tail_version": version, "reward": reward, "prompt": "SECRET" * 50,
                "completion": "SECRET [1, 2] \\" * 50,
            } | other  # fmt: skip
            opened.write(json.dumps(row) + "\n")
    os.utime(file, (at, at))
    return file


def session(task: int, number: int, at: float, status: str = "accepted", **other: Any) -> dict[str, Any]:
    """A session of two answers with a tool between, and a reward: 20 + 30 s, 5 s, 2 s; final after 90 s."""
    phases = {
        "generate": [{"start_ts": at + 1, "end_ts": at + 21}, {"start_ts": at + 26, "end_ts": at + 56}],
        "toolcall": [{"start_ts": at + 21, "end_ts": at + 26}], "reward": [{"start_ts": at + 56, "end_ts": at + 58}],
    }  # fmt: skip
    return {
        "task_id": task, "session_id": number, "rank": 0, "status": status, "submit_ts": at, "finalized_ts": at + 90,
        "total_s": 90.0, "generate_s": 50.0, "phases": phases,
    } | other  # fmt: skip


def sessions(root: Path, *rows: dict[str, Any], name: str = "session_tracer/sessions-r0.jsonl") -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.writelines(json.dumps(row) + "\n" for row in rows)
    return file


# ---- dumps


def test_a_sample(tmp_path: Path) -> None:
    dump(tmp_path, 7, 31, [1.0, 0.0], BEGAN)
    found = read(tmp_path)[0]
    assert found[1] == Rollout(
        "7/31/1", group_id="7/31", purpose="train", version_finish=7, finished_at=BEGAN, scored_at=BEGAN,
        group_complete_at=BEGAN, prompt_tokens=100, response_tokens=100, loss_tokens=100, reward=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("head", "start"), [(-1, None), (0, 0), (5, 5), (None, None)])
def test_the_least_version_is_the_prompts_and_no_version(tmp_path: Path, head: int | None, start: int | None) -> None:
    """The trap: prompt tokens have version -1, and the least of all tokens is taken."""
    dump(tmp_path, 7, 31, [1.0], BEGAN, head_version=head)
    assert (read(tmp_path)[0][0].version_start, read(tmp_path)[0][0].version_finish) == (start, 7)


def test_evaluations_have_a_folder_of_their_own(tmp_path: Path) -> None:
    dump(tmp_path, 7, 31, [1.0], BEGAN)
    dump(tmp_path, 7, 31, [0.5], BEGAN, folder="eval-rollout")
    assert [(one.rollout_id, one.purpose) for one in read(tmp_path)[0]] == [
        ("7/31/0", "train"),
        ("eval 7/31/0", "eval"),
    ]


def test_ranks_that_append_to_one_file_are_told_apart(tmp_path: Path) -> None:
    dump(tmp_path, 7, 31, [1.0, 0.0], BEGAN)
    _, cursor, _ = read(tmp_path)
    dump(tmp_path, 7, 31, [0.0, 0.0], BEGAN + 60)
    found = merged(read(tmp_path, cursor)[0])
    assert {name: one.group_id for name, one in found.items()} == {
        "7/31/0": "7/31", "7/31/1": "7/31", "7/31#2/0": "7/31#2", "7/31#2/1": "7/31#2",
    }  # fmt: skip


def test_no_text_is_kept(tmp_path: Path) -> None:
    dump(tmp_path, 7, 31, [1.0], BEGAN)
    assert "SECRET" not in repr(read(tmp_path))


def test_live_says_what_a_back_fill_says(tmp_path: Path) -> None:
    """Tasks end in any order, and one under an older version after those of a newer."""
    tasks = [(1, 4), (1, 2), (2, 9), (1, 11), (2, 5), (3, 12)]
    records: list[Rollout] = []
    cursor: Any = {}
    for second, (version, task) in enumerate(tasks):
        dump(tmp_path, version, task, [1.0, 0.0, 0.5], BEGAN + second * 300)
        found, cursor, _ = read(tmp_path, cursor)
        assert {one.group_id for one in found} == {f"{version}/{task}"}
        records += found
    at_once = read(tmp_path)[0]
    assert len(at_once) == 18 and sorted(records, key=repr) == sorted(at_once, key=repr)
    assert read(tmp_path, cursor)[0] == []


def test_a_file_that_is_seen_late_is_read(tmp_path: Path) -> None:
    """Another host's, 90 s older than the newest that was read."""
    dump(tmp_path, 1, 1, [1.0], BEGAN + 200)
    _, cursor, _ = read(tmp_path)
    dump(tmp_path, 1, 2, [1.0], BEGAN + 110)
    assert [one.group_id for one in read(tmp_path, cursor)[0]] == ["1/2"]


def test_a_file_is_read_when_nobody_writes_to_it(tmp_path: Path) -> None:
    file = dump(tmp_path, 1, 1, [1.0], BEGAN)
    with file.open("a") as opened:
        opened.write('{"task_id": 1, "sample')
    os.utime(file, (BEGAN + 1, BEGAN + 1))
    assert read(tmp_path, now=BEGAN + 2)[0] == []
    found, cursor, dropped = read(tmp_path, now=BEGAN + 9)
    assert (len(found), dropped) == (1, 0)
    file.unlink()
    dump(tmp_path, 1, 1, [1.0, 0.0], BEGAN + 10)
    assert [one.rollout_id for one in read(tmp_path, cursor)[0]] == ["1/1/0", "1/1/1"]


@pytest.mark.parametrize("size", [1, 5, 10])
def test_small_bites_lose_nothing(size: int) -> None:
    assert merged(read(RUN, tail_rows=size)[0]) == merged(read(RUN)[0])
    assert len(merged(read(RUN)[0])) == 4 * 4 + 3


def test_the_cursor_does_not_grow_with_the_run(tmp_path: Path) -> None:
    cursor: Any = {}
    for version in range(40):
        for task in range(3):
            dump(tmp_path, version, version * 3 + task, [1.0], BEGAN + version * 300 + task)
        found, cursor, _ = read(tmp_path, cursor)
        assert len(found) == 3
    assert sorted(map(int, cursor["dumps"]["rollout"]["versions"])) == list(range(32, 40))
    assert len(json.dumps(cursor)) < 2_500


def test_a_run_that_goes_back_is_followed(tmp_path: Path) -> None:
    """Recovered at version 2: folders of later versions are left, and tasks begin at 0 again."""
    for version in range(12):
        dump(tmp_path, version, version, [1.0], BEGAN + version * 300)
    _, cursor, _ = read(tmp_path)
    for version in range(3, 12):
        shutil.rmtree(tmp_path / f"rollout/{version}")
    dump(tmp_path, 2, 0, [1.0], BEGAN + 9_000)
    assert "2/0" in {one.group_id for one in read(tmp_path, cursor)[0]}


def test_lines_that_are_no_samples_are_dropped_and_named(tmp_path: Path) -> None:
    file = dump(tmp_path, 1, 1, [1.0], BEGAN)
    with file.open("a") as opened:
        opened.write('{"task_id": 1}\nSECRET\n')
    os.utime(file, (BEGAN, BEGAN))
    reading = COLLECTOR.tail(tmp_path, {}, Limits(), NOW)  # type: ignore[misc]
    assert (len(reading.rollouts), reading.dropped) == (1, 2)
    assert reading.why_dropped == "a line of 1.jsonl is not a sample of AReaL"


# ---- sessions


def test_a_session(tmp_path: Path) -> None:
    sessions(tmp_path, session(3, 8, BEGAN))
    (one,) = read(tmp_path)[0]
    assert one == Rollout(
        "r0.0 session 8", group_id="r0.0 task 3", dispatched_at=BEGAN, started_at=BEGAN + 1, finished_at=BEGAN + 56,
        scored_at=BEGAN + 58, group_complete_at=BEGAN + 90, turn_count=2, tool_calls=1,
        spans=(
            Span("generate", BEGAN + 1, BEGAN + 21), Span("tool", BEGAN + 21, BEGAN + 26),
            Span("generate", BEGAN + 26, BEGAN + 56), Span("scoring", BEGAN + 56, BEGAN + 58),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "reason", "cause", "error"),
    [
        ("accepted", None, None, ""), ("pending", None, None, ""), ("rejected", "rejected", "surplus", "rejected"),
        ("rejected", "returned_none", "env_error", "returned_none"), ("dropped", None, "surplus", "dropped"),
        ("failed", "workflow_exception", "env_error", "workflow_exception"),
    ],
)  # fmt: skip
def test_fates(tmp_path: Path, status: str, reason: str | None, cause: str | None, error: str) -> None:
    sessions(tmp_path, session(3, 8, BEGAN, status, **({"reason": reason} if reason else {})))
    (one,) = read(tmp_path)[0]
    assert (one.exit, one.error) == (cause, error)


def test_another_life_reuses_ids_and_is_told_apart(tmp_path: Path) -> None:
    """Ids begin anew; the block of the life before that is written last is still its own."""
    sessions(
        tmp_path, session(0, 0, BEGAN), session(1, 2, BEGAN + 20), session(0, 1, BEGAN + 10),
        session(0, 0, BEGAN + 500),
        session(1, 9, BEGAN + 30), session(1, 1, BEGAN + 510),
    )  # fmt: skip
    found = read(tmp_path)[0]
    assert [one.rollout_id.split()[0] for one in found] == ["r0.0", "r0.0", "r0.0", "r0.1", "r0.0", "r0.1"]
    assert len(merged(found)) == 6


def test_roles_and_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        name = f"session_tracer/actor/sessions-r{rank}.jsonl"
        sessions(tmp_path, session(0, 0, BEGAN, role="actor") | {"rank": rank}, name=name)
    assert {one.rollout_id for one in read(tmp_path)[0]} == {"actor r0.0 session 0", "actor r1.0 session 0"}
    assert len(read(tmp_path / "session_tracer")[0]) == 2
    assert len(read(tmp_path / "session_tracer/actor/sessions-r1.jsonl")[0]) == 1


def test_beside_dumps_sessions_are_not_counted(tmp_path: Path) -> None:
    sessions(tmp_path, session(0, 0, BEGAN))
    assert [one.sampled for one in read(tmp_path)[0]] == [False]
    dump(tmp_path, 1, 0, [1.0], BEGAN + 90)
    found = {one.rollout_id: one.sampled for one in read(tmp_path)[0]}
    assert found == {"1/0/0": False, "r0.0 session 0": True}


def test_sessions_line_by_line(tmp_path: Path) -> None:
    records: list[Rollout] = []
    cursor: Any = {}
    data = (RUN / "session_tracer/sessions-r0.jsonl").read_bytes()
    for at in range(0, len(data), 333):
        with sessions(tmp_path).open("ab") as opened:
            opened.write(data[at : at + 333])
        found, cursor, dropped = read(tmp_path, cursor)
        records += found
        assert dropped == 0
    assert records == read(tmp_path)[0] and len(records) == 3


def test_what_is_no_session_is_dropped_and_named(tmp_path: Path) -> None:
    sessions(tmp_path, session(0, 0, BEGAN), {"task_id": 0}, session(0, 1, BEGAN, "SECRET"))
    reading = COLLECTOR.tail(tmp_path, {}, Limits(), NOW)  # type: ignore[misc]
    assert (len(reading.rollouts), reading.dropped) == (1, 2)
    assert reading.why_dropped == "a line of sessions-r0.jsonl is not a session of AReaL"


def test_what_it_is_known_by(tmp_path: Path) -> None:
    matches = areal_rollouts.matches_path
    assert matches(RUN) == "rollout/ with AReaL's samples"
    assert matches(RUN / "session_tracer") == "sessions-r0.jsonl with AReaL's sessions"
    (tmp_path / "rollout/12").mkdir(parents=True)
    (tmp_path / "rollout/12/1.jsonl").write_text('{"other": 1}\n')
    assert matches(tmp_path) is None
    with pytest.raises(ScrapeError, match="looked for rollout/VERSION/TASK"):
        read(tmp_path / "rollout")
