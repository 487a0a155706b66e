"""What the dumps of tinker, verl, open-instruct, ROLL, NeMo-RL, ART and miles say of single rollouts, by hand."""

from pathlib import Path

import pytest

from collectors.formats import parquet
from collectors.model import Consumption, Rollout, ScrapeError, Span, Turn
from collectors.rollouts import (
    art_rollouts,
    miles_rollouts,
    nemo_rl_rollouts,
    open_instruct_rollouts,
    roll_rollouts,
    tinker_rollouts,
    verl_rollouts,
)
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts import _written as dump
from tests.collectors.rollouts._written import EPOCH, event, jsonl, merged, tailed, write

NOW = EPOCH + 5_000.0


def test_tinker(tmp_path: Path) -> None:
    write(tmp_path / "iteration_000005/train_rollout_summaries.jsonl", dump.tinker(5, [[1, 0], [0, 0]], 3), EPOCH)
    write(
        tmp_path / "iteration_000005/eval_gsm8k_rollout_summaries.jsonl", dump.tinker(5, [[1]], 5, "eval/gsm8k"), EPOCH
    )
    found = merged(tailed(tinker_rollouts.COLLECTOR, tmp_path, NOW)[0])
    assert found["train/5/0/1"] == Rollout(
        "train/5/0/1", "train/5/0", 2, purpose="train", environment="math", version_dispatched=3, version_start=3,
        token_versions=((3, 12),), consumptions=(Consumption(5, EPOCH),), prompt_tokens=30, response_tokens=12,
        loss_tokens=12, turns=(Turn(3), Turn(3)), turn_count=2, reward=0.0,
    )  # fmt: skip
    evaluated = found["eval_gsm8k/5/0/0"]
    assert (evaluated.purpose, evaluated.consumptions, evaluated.finished_at) == ("eval", (), EPOCH)


@pytest.mark.parametrize(("config", "left"), [
    (b'{"remove_constant_reward_groups": true, "async_config": null}', "zero_advantage"),
    (b'{"remove_constant_reward_groups": true, "async_config": {"max_steps_off_policy": 2}}', None),
    (b'{"remove_constant_reward_groups": false}', None),
])  # fmt: skip
def test_tinkers_constant_groups_left_where_the_recipe_removes_them(config: bytes, left: str, tmp_path: Path) -> None:
    write(tmp_path / "config.json", config, EPOCH)
    write(tmp_path / "iteration_000005/train_rollout_summaries.jsonl", dump.tinker(5, [[1, 0], [0, 0]], 5), EPOCH)
    found = tailed(tinker_rollouts.COLLECTOR, tmp_path, NOW)[0]
    assert [one.exit for one in found] == [None, None, left, left]
    assert [bool(one.consumptions) for one in found] == [True, True, left is None, left is None]


def test_verl(tmp_path: Path) -> None:
    write(tmp_path / "rollouts/7.jsonl", dump.verl(7, [("a", 1.0), ("a", 0.0), ("b", 1.0)], uid=True), EPOCH)
    write(tmp_path / "my_val_dump/7.jsonl", dump.verl(7, [("a", 1.0)], uid=True), EPOCH)
    found = merged(tailed(verl_rollouts.COLLECTOR, tmp_path, NOW)[0])
    assert found["7/9f1c-a_1_0"] == Rollout(
        "7/9f1c-a_1_0", "7/9f1c-a", 2, purpose="train", consumptions=(Consumption(6, EPOCH),), reward=0.0
    )
    assert found["7/9f1c-b_0_0"].group_size == 1
    evaluated = found["my_val_dump/7/9f1c-a_0_0"]
    assert (evaluated.purpose, evaluated.consumptions, evaluated.scored_at) == ("eval", (), EPOCH)


def test_verls_older_trainers_groups_are_found_by_prompt_whatever_the_order(tmp_path: Path) -> None:
    rows = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("c", 1.0), ("b", 0.0)]
    write(tmp_path / "7.jsonl", dump.verl(7, rows, uid=False), EPOCH)
    found = tailed(verl_rollouts.COLLECTOR, tmp_path, NOW)[0]
    assert [(one.rollout_id, one.group_id) for one in found] == [
        ("7/0", "7/p0"), ("7/1", "7/p1"), ("7/2", "7/p0"), ("7/3", "7/p2"), ("7/4", "7/p1")
    ]  # fmt: skip
    assert {(one.group_size, one.group_complete_at) for one in found} == {(None, EPOCH)}


def test_open_instruct(tmp_path: Path) -> None:
    write(tmp_path / "old_rollouts_000000.jsonl", dump.open_instruct(0, [[0, 0]]), EPOCH - 900)
    write(tmp_path / "new_rollouts_000000.jsonl", dump.open_instruct(4, [[1, 0], [0, 0]]), EPOCH)
    found = merged(tailed(open_instruct_rollouts.COLLECTOR, tmp_path, NOW)[0])
    assert found["4/1"] == Rollout(
        "4/1", "4/g0", 2, purpose="train", environment="gsm8k", consumptions=(Consumption(4, EPOCH),), prompt_tokens=11,
        response_tokens=101, tool_calls=2, reward=0.0, advantage=-0.5, truncated=True,
    )  # fmt: skip
    assert sorted(found) == ["4/0", "4/1", "4/2", "4/3"], "the run that began last"
    assert found["4/0"].truncated is False


def test_open_instructs_rows_between_two_looks_are_dated_in_order(tmp_path: Path) -> None:
    """The first look has only the file's time; what came in the 100 s after it is spread over them, by bytes."""
    file, first = tmp_path / "a_rollouts_000000.jsonl", dump.open_instruct(0, [[1, 0]])
    write(file, first, EPOCH)
    _, cursor, _ = tailed(open_instruct_rollouts.COLLECTOR, tmp_path, EPOCH + 10)
    write(file, first + dump.open_instruct(1, [[1, 0]]) + dump.open_instruct(2, [[1, 0]]), EPOCH + 100)
    found = tailed(open_instruct_rollouts.COLLECTOR, tmp_path, EPOCH + 110, cursor=cursor)[0]
    times = [use.at - EPOCH for one in found for use in one.consumptions if use.at is not None]
    assert times == pytest.approx([25, 50, 75, 100], abs=0.1)


def test_roll(tmp_path: Path) -> None:
    write(tmp_path / "rollout_dump_data.step_3.jsonl", dump.roll(3, [[1, 0], [0, 0]]), EPOCH)
    found = tailed(roll_rollouts.COLLECTOR, tmp_path, NOW)[0]
    assert found[1] == Rollout(
        "3/1", "3/g0", 2, purpose="train", environment="math_rule", difficulty="hard",
        consumptions=(Consumption(3, EPOCH),), reward=0.0,
    )  # fmt: skip
    write(tmp_path / "rollout_dump_data.step_4.jsonl", dump.roll(4, [[1, 0, 1], [0, 0, 0]], ids=False), EPOCH)
    later = tailed(roll_rollouts.COLLECTOR, tmp_path, NOW)[0][4:]
    assert [one.group_id for one in later] == ["4/g0"] * 3 + ["4/g1"] * 3, "by prompt where there are no ids"


def test_rolls_agentic_trajectories(tmp_path: Path) -> None:
    write(tmp_path / "rollout_dump_data.step_3.jsonl", dump.roll_agentic(3, [[1, 0], [0, 0]]), EPOCH)
    one = tailed(roll_rollouts.COLLECTOR, tmp_path, NOW)[0][1]
    assert one == Rollout(
        "3/web_3_4_0_1_7_42_20260801_120000_000001", "3/web_0_7_42", purpose="train", environment="web",
        version_start=3, version_finish=4, consumptions=(Consumption(3, EPOCH),), group_complete_at=EPOCH,
        response_tokens=100, turn_count=3, reward=0.0, truncated=True, error="timeout",
    )  # fmt: skip
    write(tmp_path / "rollout_dump_data.step_3.jsonl", dump.roll_agentic(3, [[1]], mode="val"), EPOCH)
    evaluated = tailed(roll_rollouts.COLLECTOR, tmp_path, NOW)[0][0]
    assert (evaluated.purpose, evaluated.consumptions, evaluated.finished_at) == ("eval", (), EPOCH)


def test_rolls_broken_file_is_dropped_whole(tmp_path: Path) -> None:
    write(tmp_path / "rollout_dump_data.step_3.jsonl", dump.roll(3, [[1, 0]])[:-40], EPOCH)
    assert tailed(roll_rollouts.COLLECTOR, tmp_path, NOW)[::2] == ([], 1)


def test_nemo_rl(tmp_path: Path) -> None:
    write(tmp_path / "train_data_step3.jsonl", dump.nemo_rl([[1, 0], [0, 0]]), EPOCH)
    found = tailed(nemo_rl_rollouts.COLLECTOR, tmp_path, NOW)[0]
    assert found[2] == Rollout(
        "3/2", "3/g1", 2, purpose="train", environment="coder", consumptions=(Consumption(2, EPOCH),),
        prompt_tokens=3, response_tokens=67, loss_tokens=67, reward=0.0,
    )  # fmt: skip
    assert [one.group_id for one in found] == ["3/g0", "3/g0", "3/g1", "3/g1"]


def test_nemo_rls_last_experiment_is_read(tmp_path: Path) -> None:
    for name, rewards in (("exp_001", [[0, 0]]), ("exp_002", [[1, 0, 1]])):
        write(tmp_path / name / "train_data_step1.jsonl", dump.nemo_rl(rewards), EPOCH)
    assert len(tailed(nemo_rl_rollouts.COLLECTOR, tmp_path, NOW)[0]) == 3


def test_art() -> None:
    found = merged(tailed(art_rollouts.COLLECTOR, TESTDATA / "art_rollouts/pipeline", 4e9)[0])
    assert len(found) == 3 * 4 + 2 + 2
    one = found["train/2/1"]
    assert (one.group_id, one.group_size, one.reward, one.turn_count, one.tool_calls) == ("train/2/g0", 2, 0.0, 2, 2)
    assert [use.version for use in one.consumptions] == [1], "the pipeline trainer logs under the step it made"
    left = found["discarded/2/0"]
    assert (left.purpose, left.exit, left.consumptions) == ("train", "zero_advantage", ())
    assert (found["val/2/0"].purpose, found["val/2/0"].environment) == ("eval", "val")


def test_art_in_a_loop_of_ones_own_logs_before_it_trains(tmp_path: Path) -> None:
    source = TESTDATA / "art_rollouts/pipeline/trajectories/train/0002.parquet"
    write(tmp_path / "trajectories/train/0002.parquet", source.read_bytes(), EPOCH)
    found = tailed(art_rollouts.COLLECTOR, tmp_path, NOW)[0]
    assert {use.version for one in found for use in one.consumptions} == {2}


def test_art_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    with pytest.raises(ScrapeError, match=r"uv tool install '\.\[parquet\]'"):
        tailed(art_rollouts.COLLECTOR, TESTDATA / "art_rollouts/pipeline", NOW)


STREAM = "dashboard/trajectories/20231114_22.jsonl"
META = b'{"run_name": "m", "start_ts": %d, "args": {"n_samples_per_prompt": 2}, "schema_version": 1}'


def test_miles_from_events_and_conversations(tmp_path: Path) -> None:
    """Two turns with a tool between them: the version of a turn is told with the event after its end."""
    events = [
        event(10, "attempt_start", 4), event(12, "gen_start", 4), event(12, "gen_start", 4, 1),
        event(20, "gen_end", 4, 1, "", "50"), event(21, "tool_start", 4, 1, "3", "1 calls"),
        event(25, "tool_end", 4, 1, "3", "1 calls"), event(26, "gen_start", 4, 2, "3"),
        event(40, "gen_end", 4, 2, "3", "30"), event(41, "attempt_end", 4, version="4", detail="completed"),
    ]  # fmt: skip
    write(tmp_path / "dashboard/meta.json", META % (EPOCH - 10), EPOCH - 10)
    write(tmp_path / STREAM, jsonl(events), EPOCH)
    write(tmp_path / "trajectory/3.jsonl", dump.miles([(4, 0.5)]), EPOCH + 1)
    found = merged(tailed(miles_rollouts.COLLECTOR, tmp_path, NOW)[0])
    assert found == {
        "4": Rollout(
            "4", "2", 2, attempt=1, purpose="train", version_start=3, version_finish=4,
            token_versions=((3, 50), (4, 30)),
            consumptions=(Consumption(4, EPOCH + 1),), dispatched_at=10, started_at=12, finished_at=41,
            response_tokens=80, turns=(Turn(3), Turn(4)), turn_count=2, reward=0.5, truncated=False,
            spans=(Span("queued", 10, 12), Span("generate", 12, 20, 3), Span("tool", 21, 25),
                   Span("generate", 26, 40, 4)),
        )
    }  # fmt: skip


@pytest.mark.parametrize("name", ["kind", "ts", "sample_index", "group_index", "weight_version", "detail"])
def test_a_list_in_a_miles_event_does_not_stop_the_others(tmp_path: Path, name: str) -> None:
    good = [event(10, "attempt_start", 4), event(12, "gen_start", 4), event(41, "attempt_end", 4, detail="completed")]
    poisoned = {**event(11, "attempt_start", 5), name: ["x"]}
    write(tmp_path / STREAM, jsonl([poisoned, *good]), EPOCH)
    found = merged(tailed(miles_rollouts.COLLECTOR, tmp_path, NOW)[0])
    assert (found["4"].dispatched_at, found["4"].finished_at) == (10, 41)


def test_miles_partial_rollouts_go_on_and_others_are_given_up(tmp_path: Path) -> None:
    """Of two that were aborted one goes on; the other has not by 300 s later, when another sample begins."""
    events = [event(10, "attempt_start", one) for one in (0, 1)] + [event(11, "gen_start", one) for one in (0, 1)]
    events += [event(20, "attempt_end", one, version="1", detail="aborted") for one in (0, 1)]
    write(tmp_path / STREAM, jsonl(events), EPOCH)
    early, cursor, _ = tailed(miles_rollouts.COLLECTOR, tmp_path, NOW)
    assert [(one.exit, one.finished_at, one.spans[-1]) for one in early] == [(None, None, Span("suspended", 20))] * 2
    events += [event(30, "attempt_start", 0), event(31, "gen_start", 0, version="1"),
               event(50, "attempt_end", 0, version="2", detail="completed"), event(319, "attempt_start", 2),
               event(320.5, "attempt_start", 3)]  # fmt: skip
    write(tmp_path / STREAM, jsonl(events), EPOCH)
    late = merged(tailed(miles_rollouts.COLLECTOR, tmp_path, NOW, cursor=cursor)[0])
    assert (late["0"].attempt, late["0"].turns, late["0"].exit) == (2, (Turn(1), Turn(2)), None)
    assert [(span.kind, span.start, span.end) for span in late["0"].spans] == [
        ("queued", 10, 11), ("generate", 11, 20), ("suspended", 20, 30), ("queued", 30, 31), ("generate", 31, 50)
    ]  # fmt: skip
    assert (late["1"].exit, late["1"].finished_at) == ("aborted_oversample", 20)
    assert late["2"].spans == (Span("queued", 319),)


def test_miles_versions_of_a_resumed_run_are_not_told(tmp_path: Path) -> None:
    """Engines count from 1 again after a restart: rollout 9 is trained from a version that nobody knows."""
    write(tmp_path / "trajectory/8.jsonl", dump.miles([(16, 0.5)]), EPOCH)
    write(tmp_path / "trajectory/9.jsonl", dump.miles([(18, 0.5)]), EPOCH + 200)
    versions = {None: [9, 10], EPOCH - 10: [9, 10], EPOCH + 100: [9, None]}
    for started, expected in versions.items():
        if started is not None:
            write(tmp_path / "dashboard/meta.json", META % started, EPOCH)
        found = tailed(miles_rollouts.COLLECTOR, tmp_path, NOW)[0]
        assert [use.version for one in found for use in one.consumptions] == expected


def test_miles_files_of_hours_are_followed_in_order(tmp_path: Path) -> None:
    for hour in range(20, 24):
        write(
            tmp_path / f"dashboard/trajectories/20231114_{hour}.jsonl",
            jsonl([event(hour, "attempt_start", hour)]),
            EPOCH,
        )
    found, cursor, _ = tailed(miles_rollouts.COLLECTOR, tmp_path, NOW)
    assert [one.rollout_id for one in found] == ["20", "21", "22", "23"]
    assert sorted(cursor["events"]["hours"]) == [f"20231114_{hour}.jsonl" for hour in (21, 22, 23)]
    with (tmp_path / "dashboard/trajectories/20231114_23.jsonl").open("ab") as file:
        file.write(jsonl([event(30, "gen_start", 20)]))
    later = tailed(miles_rollouts.COLLECTOR, tmp_path, NOW, cursor=cursor)[0]
    assert [(one.rollout_id, one.dispatched_at, one.started_at) for one in later] == [("20", 20, 30)]
