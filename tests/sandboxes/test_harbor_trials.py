"""Results written by harbor 0.25.0's own models, with the times and exceptions its trial.py records."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Limits, Reading, ScrapeError
from collectors.sandboxes import harbor_trials
from collectors.sandboxes.harbor_trials import is_trial, trial
from tests.collectors._reading import TESTDATA

JOBS = TESTDATA / "harbor_trials" / "jobs"
NOW = 1_795_300_000.0


def read(path: Path, cursor: dict[str, Any] | None = None, now: float = NOW, **limits: int) -> Reading:
    return harbor_trials.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), now)


def total(found: Reading, metric: str) -> float:
    return max((one.value for one in found.samples if one.metric == metric), default=0.0)


def result(number: int) -> dict[str, Any]:
    (file,) = JOBS.glob(f"swe-job/hello-{number:02}__*/result.json")
    return dict(json.loads(file.read_text()))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A copy whose results were written a minute apart."""
    copy = Path(shutil.copytree(JOBS, tmp_path / "jobs"))
    for number, file in enumerate(sorted(copy.rglob("result.json"))):
        os.utime(file, (NOW - 3600 + 60 * number,) * 2)
    return copy


def test_recorded_trials(jobs: Path) -> None:
    found = read(jobs)
    rows = [
        [box.provider, box.name[:8], box.state, box.cause, None if box.ready_at is None or box.requested_at is None
         else box.ready_at - box.requested_at]
        for box in found.sandboxes
    ]  # fmt: skip
    assert rows == [
        ["daytona", "hello-00", "terminated", None, 30.5],
        ["daytona", "hello-01", "failed", "timeout", None],
        ["modal", "hello-02", "terminated", None, 12.25],
        ["modal", "hello-03", "failed", "image", None],
        ["daytona", "hello-04", "terminated", None, 20.0],  # the agent ran out of time: not the sandbox
        ["daytona", "hello-05", "failed", "quota", None],
        # 06 was cancelled.
        ["docker", "hello-07", "terminated", None, 2.5],
        ["e2b", "hello-08", "terminated", None, 1.0],
        ["e2b", "hello-09", "terminated", None, 1.5],
        ["e2b", "hello-10", "terminated", None, 2.0],
        ["e2b", "hello-11", "terminated", None, 2.5],
        ["e2b", "hello-12", "terminated", None, 3.0],
    ]
    assert (total(found, "rollouts_seen_total"), total(found, "rollouts_infra_failed_total")) == (12, 3)
    first = found.sandboxes[0]
    # 22:00:01, 22:00:31.5 and 22:00:40.5 UTC.
    assert (first.requested_at, first.ready_at, first.ended_at) == (1795298401.0, 1795298431.5, 1795298440.5)


def test_a_failed_starts_end_is_no_latency_and_only_its_first_line_is_kept() -> None:
    assert result(5)["environment_setup"]["finished_at"] is not None
    one = trial(result(5))
    assert one is not None and one.sandboxes[0].ready_at is None
    assert one.sandboxes[0].detail == "DaytonaError: Total disk limit exceeded. Maximum allowed: 30GiB"


def test_only_new_results_are_read(jobs: Path) -> None:
    before = read(jobs)
    assert read(jobs, before.cursor).sandboxes == ()  # type: ignore[arg-type]
    late = jobs / "swe-job/hello-99__x"
    shutil.copytree(jobs / "swe-job/hello-00__AbCdE00", late)
    os.utime(late / "result.json", (NOW, NOW))
    found = read(jobs, before.cursor)  # type: ignore[arg-type]
    assert len(found.sandboxes) == 1 and total(found, "rollouts_seen_total") == 13
    assert len(found.cursor["recent"]) == 1  # type: ignore[index]


def test_one_from_a_host_with_a_slow_clock_is_not_missed(jobs: Path) -> None:
    before = read(jobs)
    newest = before.cursor["newest"]  # type: ignore[index]
    late = jobs / "swe-job/hello-99__x"
    shutil.copytree(jobs / "swe-job/hello-00__AbCdE00", late)
    os.utime(late / "result.json", (newest - 50, newest - 50))
    assert len(read(jobs, before.cursor).sandboxes) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 5])
def test_small_bites_lose_nothing(jobs: Path, size: int) -> None:
    cursor: Any = {}
    names: list[str] = []
    for _ in range(13 // size + 1):
        found = read(jobs, cursor, tail_rows=size)
        names += [box.name for box in found.sandboxes]
        cursor = found.cursor
    assert len(names) == len(set(names)) == 12 and cursor["counts"]["swe-bench"]["seen"] == 12


def test_a_result_just_being_written_comes_again_and_a_broken_one_is_counted(jobs: Path) -> None:
    before = read(jobs)
    file = jobs / "swe-job/hello-99__x/result.json"
    file.parent.mkdir()
    file.write_text(json.dumps(result(0))[:900])
    os.utime(file, (NOW, NOW))
    half = read(jobs, before.cursor, now=NOW + 1)  # type: ignore[arg-type]
    assert (half.dropped, half.sandboxes) == (0, ())
    assert read(jobs, half.cursor, now=NOW + 40).dropped == 1  # type: ignore[arg-type]
    file.write_text(json.dumps(result(0)))
    os.utime(file, (NOW + 2, NOW + 2))
    assert len(read(jobs, half.cursor, now=NOW + 40).sandboxes) == 1  # type: ignore[arg-type]


def test_a_job_or_one_trial_may_be_named(jobs: Path) -> None:
    assert len(read(jobs / "swe-job").sandboxes) == 12
    assert len(read(jobs / "swe-job/hello-00__AbCdE00").sandboxes) == 1
    assert harbor_trials.matches_path(jobs.parent) is None  # three folders down
    with pytest.raises(ScrapeError):
        read(jobs.parent)


def test_a_jobs_own_result_is_no_trial(jobs: Path) -> None:
    (jobs / "swe-job/result.json").write_text('{"id": "x", "n_total_trials": 13, "stats": {}}')
    assert len(read(jobs).sandboxes) == 12 and read(jobs).dropped == 0


@given(
    st.sampled_from(["id", "config", "exception_info", "environment_setup", "agent_setup", "finished_at", "source"]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=14), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_any_field_may_be_anything(key: str, value: Any) -> None:
    row = {**result(1), key: value}
    assert is_trial(row)
    one = trial(row)
    for box in one.sandboxes if one is not None else ():
        assert box.id and (box.cause is None) == (box.state != "failed") and len(box.detail) <= 200


def test_what_is_no_regular_file_hides_nothing(jobs: Path) -> None:
    """A link to nowhere, a pipe nobody writes to, a folder of that name."""
    whole = len(read(jobs).sandboxes)
    for name in ("broken", "pipe", "folder"):
        (jobs / "swe-job" / name).mkdir()
    (jobs / "swe-job/broken/result.json").symlink_to(jobs / "nowhere")
    os.mkfifo(jobs / "swe-job/pipe/result.json")
    (jobs / "swe-job/folder/result.json").mkdir()
    found = read(jobs)
    assert (len(found.sandboxes), found.dropped) == (whole, 0)
    assert harbor_trials.matches_path(jobs) is not None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """One that took a file's place after it was looked at, and a link to one."""
    os.mkfifo(tmp_path / "result.json")
    (tmp_path / "link").symlink_to(tmp_path / "result.json")
    assert harbor_trials._row(tmp_path / "result.json") is None
    assert harbor_trials._row(tmp_path / "link") is None
    with pytest.raises(ScrapeError, match="no trials"):
        read(tmp_path)
    assert harbor_trials.matches_path(tmp_path) is None
