"""Rollouts of prime-rl and verifiers: every number is reckoned by hand from `_episodes.py`."""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Consumption, Limits, Rollout, ScrapeError, Span, Turn
from collectors.rollouts.verifiers_rollouts import COLLECTOR
from server.alerts.settings import AlertSettings
from server.cli import check_report as check
from server.targets.model import RunSettings, TargetSettings
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts._episodes import BEGAN, configure, episode, failed, group, shipped, trace, write
from tests.collectors.rollouts._verifiers import committed, exits, read

RECORDED = TESTDATA / "verifiers_traces"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return committed(tmp_path)


# ---- one trace


def test_a_rollout_of_two_turns(run: Path) -> None:
    one = read(run)[0]["a0"]
    assert one == Rollout(
        "a0", group_id="a", group_size=4, purpose="train", environment="math", agent="agent",
        version_dispatched=0, version_start=0, version_finish=0, consumptions=(Consumption(0, BEGAN + 100),),
        started_at=BEGAN, finished_at=BEGAN + 67, scored_at=BEGAN + 70,
        prompt_tokens=48, response_tokens=160, loss_tokens=160,
        turns=(Turn(version=0, tool_calls=1), Turn(version=0, tool_calls=0)), turn_count=2, tool_calls=1,
        sandbox_ids=("sbx-a0",), reward=1.0, advantage=0.5, truncated=False,
        spans=(
            Span("boot", BEGAN, BEGAN + 10), Span("boot", BEGAN + 10, BEGAN + 12, detail="setup"),
            Span("generate", BEGAN + 12, BEGAN + 32, 0), Span("tool", BEGAN + 32, BEGAN + 37),
            Span("generate", BEGAN + 37, BEGAN + 67, 0),
            Span("scoring", BEGAN + 67, BEGAN + 68, detail="finalize"), Span("scoring", BEGAN + 68, BEGAN + 70),
        ),
    )  # fmt: skip


def test_the_last_of_a_group_completes_it(run: Path) -> None:
    """The fourth ends 3 s after the first."""
    found = read(run)[0]
    assert [found[f"a{n}"].group_complete_at for n in range(4)] == [None, None, None, BEGAN + 73]


def test_an_episode_that_met_an_update_has_a_span_and_turns_without_a_version(run: Path) -> None:
    one = read(run)[0]["b1"]
    assert (one.version_dispatched, one.version_start, one.version_finish) == (0, 0, 1)
    assert [turn.version for turn in one.turns] == [None, None]
    assert {span.version for span in one.spans} == {None}
    # Batch 2 trains version 1: one version old, all of it in flight.
    assert one.consumptions == (Consumption(1, BEGAN + 250),)


def test_evaluations_and_agents_that_are_not_trained_are_told_apart(run: Path) -> None:
    found = read(run)[0]
    assert (found["v0"].purpose, found["v0"].environment, found["v0"].group_size) == ("eval", "gsm", 2)
    assert (found["dj"].purpose, found["dj"].group_id, found["dj"].version_start) == ("judge", "", None)
    assert (found["dj"].agent, found["dj"].sandbox_ids, found["dj"].loss_tokens) == ("judge", (), None)
    assert (found["d0"].purpose, found["d0"].group_size, found["d0"].agent) == ("train", 4, "agent")
    assert Counter(one.purpose for one in found.values()) == {"train": 17, "eval": 2, "judge": 1}


def test_no_text_is_kept(run: Path) -> None:
    assert "SECRET" in (run / "rollouts/step_1/train/all/traces.jsonl").read_text()
    assert "SECRET" not in repr(read(run))


def test_rewards_are_weighted_and_none_until_scored(tmp_path: Path) -> None:
    rewards = {"a": {"score": 1.0, "weight": 0.5}, "b": {"score": 3.0, "weight": -1.0}, "c": None}
    told = [
        trace("sum", 1.0, BEGAN, rewards=rewards), trace("unscored", 1.0, BEGAN, rewards={"a": None}),
        trace("odd", 1.0, BEGAN, rewards={"a": {"score": "high", "weight": 1.0}, "b": {"score": 1.0}}),
    ]  # fmt: skip
    write(tmp_path, 1, [episode(f"e{n}", "g", 0, [one]) for n, one in enumerate(told)])
    found = read(tmp_path)[0]
    assert [(found[name].reward, found[name].scored_at) for name in ("sum", "unscored", "odd")] == [
        (-2.5, BEGAN + 70), (None, None), (None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("SandboxError", "infra_error"), ("ProviderError", "infra_error"), ("TunnelError", "infra_error"),
        ("TaskError", "env_error"), ("HarnessError", "env_error"), ("EmptyTrajectory", "env_error"),
    ],
)  # fmt: skip
def test_errors_are_the_machines_or_the_tasks(tmp_path: Path, error: str, cause: str) -> None:
    write(tmp_path, 1, [episode("e", "g", 0, [failed("t", error, BEGAN)])])
    one = read(tmp_path)[0]["t"]
    assert (one.exit, one.error, one.reward, one.scored_at, one.finished_at) == (cause, error, None, None, BEGAN + 40)


def test_an_attempt_that_was_repeated_is_no_error(tmp_path: Path) -> None:
    again = trace("t", 1.0, BEGAN, errors=[{"type": "SandboxError", "message": "no"}])
    write(tmp_path, 1, [episode("e", "g", 0, [again])])
    assert (read(tmp_path)[0]["t"].exit, read(tmp_path)[0]["t"].error) == (None, "")


def test_an_episode_without_traces_ends_no_earlier_than_the_one_before_it(tmp_path: Path) -> None:
    lost: dict[str, Any] = {"ok": False, "errors": [{"type": "TimeoutError", "message": "SECRET"}]}
    write(tmp_path, 1, [*group("a", 0, (1,), BEGAN), episode("gone", "g", 3, [], **lost)])
    one = read(tmp_path)[0]["gone"]
    assert (one.exit, one.error, one.finished_at, one.group_id) == ("infra_error", "TimeoutError", BEGAN + 70, "g")
    assert (one.version_dispatched, one.version_start) == (3, None)


@pytest.mark.parametrize(
    ("other", "truncated"),
    [
        ({"stop_condition": "max_total_tokens"}, True),
        ({"calls": []}, None),
        ({"stop_condition": "context_length"}, True),
    ],
)
def test_truncation(tmp_path: Path, other: dict[str, Any], truncated: bool | None) -> None:
    write(tmp_path, 1, [episode("e", "g", 0, [trace("t", 1.0, BEGAN, **other)])])
    assert read(tmp_path)[0]["t"].truncated is truncated


def test_a_last_answer_cut_off_is_truncated_and_a_call_that_failed_is_no_answer(tmp_path: Path) -> None:
    one = trace("t", 1.0, BEGAN)
    one["calls"][1]["finish_reason"] = "length"
    one["calls"].append({"error": {"type": "ProviderError", "message": "no"}, "time": {"start": BEGAN, "end": BEGAN}})
    write(tmp_path, 1, [episode("e", "g", 0, [one])])
    assert read(tmp_path)[0]["t"].truncated is True


def test_a_branch_feeds_in_again_only_what_is_new(tmp_path: Path) -> None:
    """Two answers to one prompt of 40 tokens: the second branch feeds in all 40 once more."""
    one = trace("t", 1.0, BEGAN)
    one["nodes"][3]["parent"] = 0
    one["calls"][1]["usage"] = {"prompt_tokens": 40, "completion_tokens": 100}
    write(tmp_path, 1, [episode("e", "g", 0, [one])])
    assert read(tmp_path)[0]["t"].prompt_tokens == 80


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    bare = {"id": "e", "env": {"id": "x"}, "ok": True, "traces": [{"version": 1, "id": "t", "ok": True}]}
    write(tmp_path, 1, [bare])
    one = read(tmp_path)[0]["t"]
    assert one == Rollout("t", environment="x", turn_count=0, tool_calls=0)


def test_recorded_episodes_of_verifiers() -> None:
    """Written by verifiers 0.4.0: 4 + 5 + 2 rollouts of training and one of evaluation; 4 of them without a sandbox."""
    found = read(RECORDED / "prime_rl")[0]
    assert Counter((one.purpose, one.exit) for one in found.values()) == {
        ("train", None): 6, ("train", "infra_error"): 4, ("train", "env_error"): 1, ("eval", None): 1,
    }  # fmt: skip
    used = {one.consumptions[0].version: one for one in found.values() if one.consumptions}
    assert set(used) == {0, 1} and sum(bool(one.consumptions) for one in found.values()) == 4
    first = found["1a7fa3bfd52c414e8772670fa2b00c9d"]
    assert (first.prompt_tokens, first.response_tokens, first.loss_tokens) == (11, 3, None)
    assert first.finished_at == pytest.approx(1795300400.791415)
    alone = read(RECORDED / "standalone")[0]
    assert [(one.purpose, one.exit) for one in alone.values()] == [(None, None), (None, "infra_error")]


# ---- what becomes of those that are not shipped


def test_what_a_later_batch_passed_over_had_no_advantage(run: Path) -> None:
    """z: all equal. b0 and b3: the mean of their group, which is shipped all the same. c2 may still be shipped."""
    found = read(run)[0]
    assert exits(found) == {
        **{f"z{n}": "zero_advantage" for n in range(4)}, "b0": "zero_advantage", "b3": "zero_advantage",
        "c3": "infra_error",
    }  # fmt: skip
    assert not found["c2"].consumptions


def test_without_the_filter_nothing_is_said_of_advantages(run: Path) -> None:
    configure(run, train={"filter_zero_advantages": False})
    assert set(exits(read(run)[0]).values()) == {"surplus", "infra_error"}
    configure(run, algo={"type": "max_rl"})
    assert set(exits(read(run)[0]).values()) == {"surplus", "infra_error"}


def test_beyond_the_bound_it_is_stale(tmp_path: Path) -> None:
    """Bound 2: batch 4 trains version 3 and holds nothing older than 1. s0 came too late, t0 may still be in it."""
    configure(tmp_path)
    s, t, used = (group(name, v, (1, 0, 0, 1), BEGAN + 9 * v) for name, v in (("s", 0), ("t", 1), ("u", 2)))
    write(tmp_path, 3, [*used, *s, *t])
    write(tmp_path, 3, shipped(used, {f"u{n}": 0.5 for n in range(4)}), cohort="effective", at=BEGAN + 99)
    first, cursor = read(tmp_path)
    assert exits(first) == {}, "the step is not over"
    write(tmp_path, 4, group("w", 3, (1,), BEGAN + 100))
    assert exits(read(tmp_path, cursor)[0]) == {f"s{n}": "stale" for n in range(4)}


def test_a_group_that_is_never_complete_is_gone_with_the_bound(tmp_path: Path) -> None:
    configure(tmp_path)
    write(tmp_path, 1, group("part", 0, (1, 0), BEGAN))
    used: list[Any] = []
    for step in (1, 2, 3, 4):
        used = group(f"u{step}", step - 1, (1, 0, 0, 0), BEGAN + 90 * step)
        write(tmp_path, step, used)
        write(tmp_path, step, shipped(used, {f"u{step}0": 0.75}), cohort="effective", at=BEGAN + 90 * step + 80)
    found = read(tmp_path)[0]
    # Steps 1 to 3 are over: batch 4 holds nothing older than version 1. What is left of u1 to u2 was passed over.
    assert {name: cause for name, cause in exits(found).items() if name.startswith("part")} == {
        "part0": "stale", "part1": "stale",
    }  # fmt: skip
    assert {exits(found)[f"u1{n}"] for n in (1, 2, 3)} == {"surplus"}


def test_without_a_configuration_nothing_is_said(run: Path) -> None:
    shutil.rmtree(run / "configs")
    found, cursor = read(run)
    assert exits(found) == {"c3": "infra_error"}
    assert cursor["waiting"]["groups"] == {} and {one.group_size for one in found.values()} == {None}


def test_a_batch_of_copied_files_is_dated_by_its_last_rollout(run: Path) -> None:
    for file in run.rglob("effective/traces.jsonl"):
        os.utime(file, (BEGAN + 10 * 86_400, BEGAN + 10 * 86_400))
    found = read(run, now=BEGAN + 11 * 86_400)[0]
    # Step 1's last rollout is z3: began 13 s in, ended 70 s later.
    assert found["a0"].consumptions == (Consumption(0, BEGAN + 83),)


def test_a_run_that_was_copied_within_hours_is_dated_by_its_rollouts(tmp_path: Path) -> None:
    """A copy dates all batches within milliseconds, an hour after the run; batch 6 is the run's own again."""
    copied = BEGAN + 3600
    for step in range(1, 7):
        used = group(f"u{step}", step - 1, (1, 0), BEGAN + 90 * step)
        write(tmp_path, step, used)
        at = copied + 0.001 * step if step < 6 else copied + 90
        write(tmp_path, step, shipped(used, {f"u{step}0": 0.5}), cohort="effective", at=at)
        if step == 5:
            reading = COLLECTOR.tail(tmp_path, {}, Limits(), copied + 60)  # type: ignore[misc]
            assert reading.gaps == (
                "files were copied: their times are not the run's; a batch is dated by its last rollout",
            )
    later = COLLECTOR.tail(tmp_path, reading.cursor, Limits(), copied + 200)  # type: ignore[misc]
    used_at = {one.rollout_id: one.consumptions for one in (*reading.rollouts, *later.rollouts) if one.consumptions}
    # The second rollout of a group ends 71 s after its group began.
    expected = {f"u{step}0": (Consumption(step - 1, BEGAN + 90 * step + 71),) for step in range(1, 6)}
    assert used_at == expected | {"u60": (Consumption(5, copied + 90),)}
    assert later.gaps == ()


def test_a_batch_is_read_when_it_is_written(tmp_path: Path) -> None:
    """Its time would be another later, and a batch of a gigabyte takes seconds."""
    one = group("a", 0, (1, 0), BEGAN)
    write(tmp_path, 1, one)
    write(tmp_path, 1, shipped(one, {"a0": 0.5}), cohort="effective", at=BEGAN + 90)
    found, cursor = read(tmp_path, now=BEGAN + 92)
    assert found["a0"].consumptions == ()
    write(tmp_path, 1, shipped(one, {"a1": -0.5}), cohort="effective", at=BEGAN + 93)
    later = read(tmp_path, cursor, now=BEGAN + 99)[0]
    assert {name: use.consumptions for name, use in later.items()} == {
        "a0": (Consumption(0, BEGAN + 93),), "a1": (Consumption(0, BEGAN + 93),),
    }  # fmt: skip


# ---- whole runs


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ScrapeError, match="looked for rollouts/step_N/train/all"):
        read(tmp_path)
    configure(tmp_path)
    assert COLLECTOR.matches_path is not None
    assert COLLECTOR.matches_path(tmp_path) == "configs/rl.json: prime-rl saves its episodes"
    assert read(tmp_path)[0] == {}


def test_what_check_says_of_a_run_that_three_read(run: Path) -> None:
    """20 rollouts; 20 ended, 8 used by a batch, 6 left out."""
    shutil.copytree(TESTDATA / "prime_rl" / "driven", run, dirs_exist_ok=True)
    said = check.text(check.probe([RunSettings("mine", (TargetSettings(str(run)),))], AlertSettings()))
    targets = [line.partition(", ")[0] + ", " + line.split(", ")[1] for line in said.splitlines() if "): up, " in line]
    assert targets == [
        "  run (prime_rl): up, 1239 samples of 31 metrics",
        "  run-verifiers_rollouts (verifiers_rollouts): up, 34 records of 20 rollouts",
        "  run-verifiers_traces (verifiers_traces): up, 48 samples of 3 metrics",
    ]
