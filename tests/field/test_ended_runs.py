"""Attaching to the log of a run that ended: its end by the log's own times, its last values, no alert and no stall."""

import json
import os
import shutil
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from server.cli.status import short
from tests.field.product import INPUTS, watching
from tests.field.test_engine_pages import engine, page

TESTDATA = INPUTS.parent
# A week after the recorded runs.
NOW = 1_795_900_000.0


def copied(source: Path, folder: Path, now: float) -> Path:
    """A copy with new modification times, as `scp` without -p makes it."""
    copy = folder / "run"
    shutil.copytree(source, copy)
    for path in (copy, *copy.rglob("*")):
        os.utime(path, (now, now))
    return copy


def rows(*parts: str, key: str) -> list[dict[str, float]]:
    """The last ten rows of a recorded JSON-lines file that have the key."""
    lines = TESTDATA.joinpath(*parts).read_text().splitlines()
    return [row for line in lines if key in (row := json.loads(line))][-10:]


def test_values_as_of_the_end() -> None:
    """The recorded files from which the expected values below were computed: means of the last ten steps."""
    prime = rows("prime_rl", "driven", "trainer", "metrics.jsonl", key="time/wait_for_batch")
    assert fmean(row["time/step"] for row in prime) == pytest.approx(43.783214)
    wait = sum(row["time/wait_for_batch"] for row in prime) / sum(row["time/step"] for row in prime)
    assert wait == pytest.approx(0.660417, rel=1e-5)


# (recorded run, epoch seconds of its newest row, its last step, values at its end)
ENDED = [
    ("verl/sync", 1_795_247_745.0, 50, {"trainer_step_seconds": 75.060725}),
    ("slime/sync", 1_795_247_993.0, 39, {}),
    ("prime_rl/driven", 1_795_248_075.0, 39, {"trainer_step_seconds": 43.783214, "trainer_wait_ratio": 0.660417}),
    ("trl/async", 1_795_250_205.0, 40, {"trainer_step_seconds": 1.175354, "trainer_wait_ratio": 0.261943}),
]


@pytest.mark.parametrize(("name", "end", "last", "values"), ENDED, ids=[row[0] for row in ENDED])
def test_a_run_that_ended_a_week_ago(
    name: str, end: float, last: int, values: dict[str, float], tmp_path: Path
) -> None:
    with watching([copied(TESTDATA / name, tmp_path, NOW)], NOW) as product:
        status = product.step(120)
        assert (status.lifecycle, status.state.name) == ("finished", "finished")
        assert status.state.as_of == pytest.approx(end, abs=5.0)
        assert status.alerts == ()
        assert status.verdict is not None and status.verdict.outcome != "stalled"
        assert status.summary is not None and status.summary.steps == last
        for signal, value in values.items():
            assert product.value(signal) == pytest.approx(value, rel=1e-5), signal
        assert "as of its end" not in str(status.facts) and status.facts["lifecycle_why"]


def test_the_summary_of_an_ended_run(tmp_path: Path) -> None:
    """The recorded run, its rows dated by its own step times: 40 steps, 1,713.4 s from the start of the first.

    Its trainer waits 60 to 70% of steps 0 to 13 and 27 to 39, and 1% of the 13 between. Without engines a wait alone
    does not show whether generation or sandboxes are slow, so a verdict exists only for the steps without a wait.
    """
    run = copied(TESTDATA / "prime_rl" / "driven", tmp_path, NOW)
    trainer = [json.loads(line) for line in (run / "trainer" / "metrics.jsonl").read_text().splitlines()]
    steps = {row["step"]: row["time/step"] for row in trainer if "time/step" in row}
    assert sum(steps.values()) == pytest.approx(1713.4055)
    end = NOW - 7 * 86_400
    for part in ("trainer", "orchestrator"):
        log = run / part / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        dated = [line | {"time": end - sum(steps[step] for step in steps if step > line["step"])} for line in lines]
        log.write_text("".join(json.dumps(line) + "\n" for line in dated))
    prices = {"trainer_gpus": 8.0, "generator_gpus": 8.0, "trainer_usd_per_gpu_hour": 2.0}
    with watching([run], NOW, facts=prices | {"generator_usd_per_gpu_hour": 3.0}) as product:
        status = product.step(60)
    assert (status.lifecycle, status.state.as_of, status.alerts) == ("finished", pytest.approx(end), ())
    found = status.summary
    assert found is not None and found.steps == 39 and found.reward == pytest.approx(0.645)
    # From the end of step 0, of 38.75198 s, to that of step 39.
    assert found.seconds == pytest.approx(1713.4055 - 38.75198, rel=1e-6)
    assert found.usd == pytest.approx((8 * 2.0 + 8 * 3.0) * found.seconds / 3600)
    assert sum(found.limiters.values()) == pytest.approx(found.seconds, abs=10)
    named = found.limiters["trainer_bound"] + found.limiters["balanced"]
    assert named == pytest.approx(sum(steps[step] for step in range(14, 27)), rel=0.25)
    assert set(found.limiters) == {"unknown", "trainer_bound", "balanced"}
    line = next(line for line in short(msgspec.to_builtins(status)).splitlines() if line.startswith("summary"))
    assert line == (
        "summary: last step 39 after 28 min, final reward 0.645, unknown 64%, trainer-bound 29%, balanced 7%, "
        "$18.61 at its mean hourly rate, $3.23 of it idle"
    )


def test_copied_rollout_files_do_not_move_the_end(tmp_path: Path) -> None:
    """TRL's step files have no times, so copies have that of the copy: the run ended with its trainer's last step."""
    run = copied(TESTDATA / "trl" / "sync", tmp_path, NOW)
    records = copied(TESTDATA / "trl_completions" / "sync", tmp_path / "records", NOW)
    with watching([run, f"trl_completions={records}"], NOW + 60) as product:
        status = product.step(60)
        assert status.facts.get("times_copied") == 1.0
        assert (status.lifecycle, status.state.as_of) == ("finished", pytest.approx(1_795_247_020.0, abs=5))
        assert {run.info.name: run.state.as_of for run in product.reader.runs.now()} == {"field": status.state.as_of}


def verl_rows(folder: Path, steps: int, modified: float) -> None:
    """The file logger's lines, which have no times: they are dated back from the file's own."""
    folder.mkdir(exist_ok=True)
    data = {"critic/score/mean": 0.4, "timing_s/gen": 50.0, "timing_s/update_actor": 45.0, "timing_s/step": 100.0}
    log = folder / "exp.jsonl"
    lines = ({"step": step, "data": data | {"training/global_step": step}} for step in range(1, steps + 1))
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(log, (modified, modified))


def test_a_run_that_was_followed_live_stalls(tmp_path: Path) -> None:
    """Steps of 100 s: 30 minutes after the last one the run stalls, because it was seen to run."""
    verl_rows(tmp_path / "run", 20, NOW)
    with watching([tmp_path / "run"], NOW + 60) as product:
        assert product.step(60).lifecycle == "running"
        status = product.step(1800)
        assert status.verdict is not None and status.verdict.outcome == "stalled"
        assert "RunStalled" in {alert.name for alert in status.alerts}


def test_an_ended_run_that_is_resumed_is_live_again(tmp_path: Path) -> None:
    verl_rows(tmp_path / "run", 20, NOW - 86_400)
    with watching([tmp_path / "run"], NOW) as product:
        assert product.step(60).lifecycle == "finished"
        verl_rows(tmp_path / "run", 21, NOW + 60)
        status = product.step(30)
        assert (status.lifecycle, status.state.name) == ("running", "live")


def test_an_old_log_next_to_an_engine_that_works_is_a_stall(tmp_path: Path) -> None:
    """Requests are served for this run, so its trainer did not end: it hangs."""
    verl_rows(tmp_path / "run", 20, NOW - 7_200)
    body = (INPUTS / "10-vllm-kv-by-process" / "metrics.prom").read_bytes()
    with engine(page(body)) as url, watching([url, tmp_path / "run"], NOW) as product:
        status = product.step(60)
        assert status.lifecycle == "running"
        assert status.verdict is not None and status.verdict.outcome == "stalled"
