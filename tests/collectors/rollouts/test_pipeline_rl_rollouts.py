"""Groups in PipelineRL's streams, written as 58d393458 writes them (rollouts.py, actor.py, streams.py)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Event, Limits, Rollout, Turn
from collectors.rollouts.pipeline_rl_rollouts import COLLECTOR
from collectors.trainers import pipeline_rl
from collectors.training_logs import tail
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts._written import merged, tailed

RUN = TESTDATA / "pipeline_rl_rollouts" / "run"
NOW = 1_781_100_000.0


def sample(index: int, step: int, reward: float, version: int, **other: Any) -> dict[str, Any]:
    """A turn: 200 tokens of prompt and 120 of answer, with everything that is not read."""
    return {
        "text": "SECRET [1, 2, 3] \\ \"said\"\n" * 20, "n_predicted": 120, "reward": reward,
        "logprobs": [-0.25] * 120, "ref_logprobs": [], "input_ids": list(range(320)),
        "labels": [-100] * 200 + list(range(120)), "group_id": "rollout_maker_0_7", "finished": True,
        "prompt_tokens": 200, "output_tokens": 120, "visual_features": None,
        "metadata": {"model_version": version, "rollout_index": index, "step_index": step},
    } | other  # fmt: skip


def groups(*rewards: tuple[float, ...], version: int = 256) -> list[list[dict[str, Any]]]:
    return [[sample(index, 0, reward, version) for index, reward in enumerate(one)] for one in rewards]


def stream(root: Path, topic: str, *lines: Any) -> Path:
    file = root / "streams" / topic / "0" / "0" / "0.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return file


def update(samples: int) -> dict[str, Any]:
    return {"kind": "weight_update_success", "version": samples, "timestamp": 1_781_000_000.0}


def read(path: Path, cursor: Any = None, **limits: int) -> tuple[list[Rollout], Any, int]:
    found, at, dropped = tailed(COLLECTOR, path, NOW, Limits(**limits), cursor)
    return found, at, dropped


def filtering(root: Path, does: bool = True) -> None:
    (root / "conf").mkdir(exist_ok=True)
    text = f"finetune:\n  rl:\n    filter_zero_advantage_groups: {str(does).lower()}\n"
    (root / "conf" / "exp_config.yaml").write_text(text)


# ---- versions


def test_a_version_is_an_update_and_not_the_samples_behind_it(tmp_path: Path) -> None:
    """The trap: 512 is the third update, and so version 2."""
    stream(tmp_path, "weight_update_request", update(0), {"kind": "samples_processed", "samples_processed": 256},
           update(256), update(512))  # fmt: skip
    stream(tmp_path, "actor", *groups((1.0, 0.0), version=0), *groups((1.0, 0.0), version=512),
           *groups((1.0, 0.0), version=300))  # fmt: skip
    assert [one.version_start for one in read(tmp_path)[0]] == [0, 0, 2, 2, None, None]


@pytest.mark.parametrize(
    ("published", "asked", "versions"),
    [
        ([0, 256, 512], [0, 256, 512, 768, 255], [0, 1, 2, None, None]),
        ([0, 100, 350, 400, 450], [0, 100, 350, 400, 450], [0, 1, 2, 3, 4]),
        # Resumed from 512 samples: the same weights are the same version, and it counts on from them.
        ([0, 256, 512, 768, 512, 768, 1024], [512, 768, 1024], [2, 3, 4]),
        ([512, 768], [512, 768, 256], [0, 1, None]),
        ([0, 0, 256], [0, 256], [0, 1]),
    ],
)
def test_updates_are_counted(published: list[int], asked: list[int], versions: list[int | None]) -> None:
    runs: tail.Runs = []
    for at in range(0, len(published), 2):
        tail.add(runs, published[at : at + 2])
        runs = json.loads(json.dumps(runs))
    assert [tail.version_of(runs, samples) for samples in asked] == versions


def test_a_long_run_of_updates_takes_little() -> None:
    runs: tail.Runs = []
    tail.add(runs, range(0, 64 * 100_000, 64))
    assert runs == [[0, 64, 100_000, 0]]
    assert tail.version_of(runs, 64 * 99_999) == 99_999


# ---- rollouts


def test_a_rollout_of_two_turns(tmp_path: Path) -> None:
    stream(tmp_path, "weight_update_request", update(0), update(256))
    turns = [sample(0, 1, 0.5, 256, finished=False, prompt_tokens=340), sample(0, 0, 0.5, 256)]
    stream(tmp_path, "actor", [*turns, sample(1, 0, 0.0, 256)])
    two, one = read(tmp_path)[0]
    assert two == Rollout(
        "rollout_maker_0_7@0/0", group_id="rollout_maker_0_7@0", group_size=2, purpose="train", version_start=1,
        prompt_tokens=200, response_tokens=240, loss_tokens=240, turns=(Turn(), Turn()), turn_count=2, reward=0.5,
        truncated=True,
    )  # fmt: skip
    assert (one.rollout_id, one.turn_count, one.truncated, one.reward) == ("rollout_maker_0_7@0/1", 1, False, 0.0)


def test_turns_of_different_rewards_have_no_one_reward(tmp_path: Path) -> None:
    stream(tmp_path, "actor", [sample(0, 0, 0.5, 0), sample(0, 1, 1.0, 0)])
    assert read(tmp_path)[0][0].reward is None


def test_groups_of_equal_rewards_are_left_out_where_the_run_says_so(tmp_path: Path) -> None:
    """Equal turn by turn: advantages are taken from the same turn of the others."""
    by_turn = [sample(index, step, reward, 0) for index in (0, 1) for step, reward in enumerate((0.2, 0.8))]
    stream(tmp_path, "actor", *groups((1.0, 1.0), (1.0, 0.0)), by_turn, *groups((1.0,)))
    assert {one.exit for one in read(tmp_path)[0]} == {None}
    filtering(tmp_path)
    assert [one.exit for one in read(tmp_path)[0]] == [
        *["zero_advantage"] * 2,
        None,
        None,
        *["zero_advantage"] * 2,
        None,
    ]
    filtering(tmp_path, does=False)
    assert {one.exit for one in read(tmp_path)[0]} == {None}


def test_evaluations_are_never_left_out(tmp_path: Path) -> None:
    filtering(tmp_path)
    stream(tmp_path, "actor_test", *groups((1.0, 1.0)))
    assert [(one.purpose, one.exit) for one in read(tmp_path)[0]] == [("eval", None)] * 2


def test_no_text_is_kept(tmp_path: Path) -> None:
    stream(tmp_path, "actor", *groups((1.0, 0.0)))
    assert "SECRET" not in repr(read(tmp_path))


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    stream(tmp_path, "actor", [{"text": "", "metadata": {"rollout_index": 0}}])
    (one,) = read(tmp_path)[0]
    assert one == Rollout("@0/0", group_id="@0", group_size=1, purpose="train", turns=(Turn(),), turn_count=1)


# ---- tailing


def test_live_says_what_a_back_fill_says(tmp_path: Path) -> None:
    records: list[Rollout] = []
    cursor: Any = {}
    for topic in ("weight_update_request", "actor"):
        data = (RUN / f"streams/{topic}/0/0/0.jsonl").read_bytes()
        for at in range(0, len(data), 5_003):
            with stream(tmp_path, topic).open("ab") as file:
                file.write(data[at : at + 5_003])
            found, cursor, dropped = read(tmp_path, cursor)
            records += found
            assert dropped == 0
    at_once = read(RUN)[0]
    assert records == at_once and len(at_once) == 26
    assert [one.version_start for one in at_once] == [0] * 4 + [1] * 8 + [2] * 14


@pytest.mark.parametrize("size", [1, 5])
def test_small_bites_lose_nothing(size: int) -> None:
    assert read(RUN, tail_rows=size)[0] == read(RUN)[0]


def test_a_second_life_of_the_actor_reuses_ids_and_is_told_apart(tmp_path: Path) -> None:
    stream(tmp_path, "actor", *groups((1.0, 0.0)), *groups((0.0, 0.0)))
    found = merged(read(tmp_path)[0])
    assert len(found) == 4 and len({one.group_id for one in found.values()}) == 2


def test_what_is_no_group_is_dropped_and_named(tmp_path: Path) -> None:
    file = stream(tmp_path, "actor", *groups((1.0, 0.0)), {"text": "x"}, [], [{"text": "x"}])
    with file.open("a") as opened:
        opened.write("[{" + '"text": "x"}, {\n')
        opened.write('[{"text":"half')
    reading = COLLECTOR.tail(tmp_path, {}, Limits(), NOW)  # type: ignore[misc]
    assert (len(reading.rollouts), reading.dropped) == (2, 4)
    assert reading.why_dropped.endswith("of 0.jsonl is not a group of PipelineRL")


def test_a_stream_that_is_written_anew_is_read_again(tmp_path: Path) -> None:
    _, cursor, _ = read(shutil.copytree(RUN, tmp_path / "run"))
    file = tmp_path / "run/streams/actor/0/0/0.jsonl"
    file.write_text("")
    stream(tmp_path / "run", "actor", *groups((0.25, 0.0), version=256))
    found, cursor, dropped = read(tmp_path / "run", cursor)
    assert [(one.reward, one.version_start) for one in found] == [(0.25, 1), (0.0, 1)] and dropped == 1


def test_it_is_known_by_its_stream(tmp_path: Path) -> None:
    assert COLLECTOR.matches_path is not None
    assert COLLECTOR.matches_path(RUN) == "streams/actor with PipelineRL's groups"
    stream(tmp_path, "actor", {"other": 1})
    assert COLLECTOR.matches_path(tmp_path) is None


# ---- the clock of versions


def updates(path: Path, cursor: Any) -> tuple[list[Event], Any]:
    assert pipeline_rl.COLLECTOR.tail is not None
    reading = pipeline_rl.COLLECTOR.tail(path, cursor, Limits(), NOW)
    return [one for one in reading.events if one.kind == "weights_published"], json.loads(json.dumps(reading.cursor))


def test_updates_are_dated_by_the_step_before_them(tmp_path: Path) -> None:
    """The log's line comes first and has the time, the stream's record comes after it and says which version."""
    source = TESTDATA / "pipeline_rl" / "run"
    whole, _ = updates(source, {})
    assert [(one.version, one.detail) for one in whole[:2]] == [
        (1, "256 samples processed"),
        (2, "512 samples processed"),
    ]
    assert whole[1].ts is not None and whole[0].ts is not None and whole[1].ts - whole[0].ts == 30.0
    live = shutil.copytree(source, tmp_path / "live")
    file = live / "streams/weight_update_request/0/0/0.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if '"weight_update_success","version":256' in line)
    file.write_text("".join(lines[:cut]))
    before, cursor = updates(live, {})
    assert before == []
    with file.open("a") as opened:
        opened.writelines(lines[cut:])
    assert updates(live, cursor)[0] == whole
