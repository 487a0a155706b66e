"""What `check` owes the user beside signals: his own facts, what was assumed, dropped, cut off or not read at all."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import collectors
from collectors.model import Collector, Limits
from collectors.trainers import slime
from server.main import main
from server.signals import recorded
from tests.recorded import TESTDATA

MAPS = """
[[run.forge.target.map]]
key = "took"
metric = "trainer_step_seconds"

[[run.forge.target.map]]
key = "queue.*"
metric = "queue_samples"
"""


def configured(tmp_path: Path, log: Path, *, facts: str, collector: str = "", maps: str = "") -> Path:
    file = tmp_path / "rollscope.toml"
    named = f'collector = "{collector}"' if collector else ""
    file.write_text(f'[run.forge]\nfacts = {facts}\n[[run.forge.target]]\npath = "{log}"\n{named}\n{maps}')
    return file


def checked(capsys: pytest.CaptureFixture[str], *given: object) -> dict:
    """The one run of --json."""
    main(["check", "--json", *map(str, given)])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return dict(run)


def signals(run: dict) -> dict[str, dict]:
    return {line["signal"]: line for line in run["signals"]}


def slime_log(tmp_path: Path) -> Path:
    """Four rollouts with two groups of equal rewards each; nothing in the log tells the batch."""
    rows = (
        f"(A pid=1) [2026-11-21 08:0{number}:00] a.py:1 - rollout {number}: "
        f"{ {'rollout/response_len/mean': 300.0, 'rollout/zero_std/count_0.0': 2, 'rollout/raw_reward': 0.5} }\n"
        for number in range(4)
    )
    log = tmp_path / "train.log"
    log.write_text("".join(rows))
    return log


def test_stated_facts_reach_the_collector(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """2 of 128 / 8 groups; and the mode is the stated one."""
    stated = '{ mode = "async", group_size = 8, batch_samples = 128 }'
    run = checked(capsys, "-c", configured(tmp_path, slime_log(tmp_path), facts=stated))
    assert signals(run)['zero_advantage_ratio{basis="completed"}']["value"] == 2 / 16
    (target,) = run["targets"]
    assert (target["mode"], target["facts"]["group_size"]) == ("async", 8)


def test_stated_facts_win_and_are_given_back() -> None:
    """The log says async and groups of 8; without the statement the same cursor knows that again."""
    path, said = TESTDATA / "slime" / "async", {"mode": "async_colocated", "group_size": 3}
    assert slime.COLLECTOR.tail is not None and slime.COLLECTOR.configured is not None
    stated = slime.COLLECTOR.configured({"facts": json.dumps(said)}).tail
    assert stated is not None
    first = stated(path, {}, Limits(), 2e9)
    assert (first.facts["mode"], first.facts["group_size"]) == ("async_colocated", 3.0)
    assert "usual_mode" not in first.facts
    again = slime.COLLECTOR.tail(path, first.cursor or {}, Limits(), 2e9).facts
    assert (again["mode"], again["group_size"], "usual_mode" in again) == ("async", 8.0, False)


def test_nothing_follows_from_the_usual_mode(capsys: pytest.CaptureFixture[str]) -> None:
    found = signals(checked(capsys, TESTDATA / "verl" / "sync_jsonl"))
    assert {found[name]["state"] for name in ("queue_samples", "staleness_bound_ratio")} == {"unknown"}
    assert found["staleness_versions"]["why"].endswith(", or state the run's `mode` in [run.NAME.facts]")


def test_what_follows_from_a_reported_mode(capsys: pytest.CaptureFixture[str]) -> None:
    found = signals(checked(capsys, TESTDATA / "trl" / "sync"))
    assert found["queue_samples"]["state"] == "not_applicable"
    assert found['staleness_versions{level="trajectory",stat="mean"}']["value"] == 0


def test_damage_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "ts": 1000, "took": 2}\n{"step": 2, "ts":\nnonsense\n')
    file = configured(tmp_path, log, facts="{}", collector="custom", maps=MAPS)
    main(["check", "-c", str(file)])
    assert "    dropped 2 (the line at byte 35 of log.jsonl is not a JSON object)\n" in capsys.readouterr().out
    (target,) = checked(capsys, "-c", file)["targets"]
    assert (target["dropped"], target["why_dropped"]) == (2, "the line at byte 35 of log.jsonl is not a JSON object")


def test_the_mean_of_a_run_that_is_over_is_that_of_its_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Six steps of 60 s, the queue 10, 10, 10, 10, 10, 4: over the last 300 s 10 was held, 4 is only the last word."""
    rows = [{"step": n, "ts": 1e9 + 60 * n, "took": 60, "queue": 10 if n < 6 else 4} for n in range(1, 7)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = configured(tmp_path, log, facts='{ mode = "async" }', collector="custom", maps=MAPS)
    found = signals(checked(capsys, "-c", file))
    assert found["queue_samples"]["value"] == pytest.approx(10)
    assert found["queue_samples_now"]["value"] == 4
    assert found["queue_samples"]["age_seconds"] > 1e6


def test_a_log_that_is_not_read_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In a folder without a run, and beside one."""
    (tmp_path / "mlflow.db").write_bytes(b"x" * 4096)
    words = "mlflow.db: not an SQLite database; it is damaged or belongs to another program"
    assert f"; not read: {words}" in checked(capsys, tmp_path)["problems"][0]
    slime_log(tmp_path)
    assert main(["check", str(tmp_path)]) == 0
    assert f"    not read: {words}\n" in capsys.readouterr().out


def test_steps_without_a_version_say_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert signals(checked(capsys, slime_log(tmp_path)))["policy_version"]["why"] == (
        "this trainer reports neither a policy version nor step times: log one of the two"
    )


# ---- records of rollouts: what `check` says of their format, and what it shows of them

RECORDED = (
    "areal_rollouts/run", "art_rollouts/pipeline", "miles_rollouts/dump", "nemo_rl_rollouts/logs",
    "open_instruct_rollouts/run", "pipeline_rl_rollouts/run", "roll_rollouts/rlvr", "tinker_rollouts/async",
    "trl_completions/sync", "verifiers_rollouts/async", "verl_rollouts/v1",
)  # fmt: skip
# Of records alone, of three versions: what each body tells enough of. Beside those no signal of records has a value.
GROUPED = {
    "reward", "zero_advantage_group_ratio", "zero_advantage_groups", "zero_advantage_low_ratio", "zero_advantage_ratio",
}  # fmt: skip
USED = GROUPED | {"rollout_exit_ratio", "staleness_versions"}
SHOWN = {
    "art_rollouts/pipeline": GROUPED | {"rollout_exit_ratio", "tool_calls", "turns"},
    "miles_rollouts/dump": USED | {
        "discarded_rollout_ratio", "infra_failure_ratio", "mixed_version_ratio", "sample_age_seconds",
        "staleness_part_versions", "turns",
    },
    "nemo_rl_rollouts/logs": GROUPED | {"response_tokens", "rollout_exit_ratio", "zero_advantage_environment_ratio"},
    "tinker_rollouts/async": USED | {
        "mixed_version_ratio", "response_tokens", "staleness_part_versions", "tail_index_ratio", "turns",
        "zero_advantage_environment_ratio",
    },
    "open_instruct_rollouts/run": GROUPED | {
        "response_tokens", "rollout_exit_ratio", "tool_calls", "zero_advantage_environment_ratio",
    },
    "pipeline_rl_rollouts/run": GROUPED | {"response_tokens", "tail_index_ratio", "turns"},
    "roll_rollouts/rlvr": GROUPED | {
        "discarded_rollout_ratio", "infra_failure_ratio", "rollout_exit_ratio", "zero_advantage_environment_ratio",
    },
    "verl_rollouts/v1": GROUPED | {"rollout_exit_ratio"},
}  # fmt: skip


def of_formats() -> dict[str, Collector]:
    return {name: collectors.load()[name] for name in collectors.record_formats()}


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Path]:
    """A recorded body, as if it had been written a minute ago: what has no time of its own is dated by its file."""

    def copied(name: str) -> Path:
        where = tmp_path / name.replace("/", "-")
        shutil.copytree(TESTDATA / name, where, copy_function=shutil.copyfile)
        then = time.time() - 60
        for file in where.rglob("*"):
            os.utime(file, (then, then))
        return where

    return copied


@pytest.mark.parametrize("name", RECORDED)
def test_no_signal_has_a_value_that_its_format_is_said_not_to_give(
    capsys: pytest.CaptureFixture[str], fresh: Callable[[str], Path], name: str
) -> None:
    known = of_formats()[name.partition("/")[0]]
    found = {
        one["signal"].partition("{")[0] for one in checked(capsys, fresh(name))["signals"] if one["state"] == "value"
    }
    shown = found & recorded.REQUIRED.keys()
    assert shown <= set(recorded.available_signals(known.record_fields))
    if name in SHOWN:
        assert shown == SHOWN[name]
