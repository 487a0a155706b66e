"""TRL's records: recorded completions and traces; what the file does not say is found out right."""

import math
import os
import shutil
from collections import defaultdict
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet as writer

from collectors.formats import parquet
from collectors.model import Consumption, Limits, Rollout, ScrapeError
from collectors.rollouts import trl_completions, trl_traces
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts._written import EPOCH, merged, tailed

SYNC = TESTDATA / "trl_completions/sync"
ASYNC = TESTDATA / "trl_traces/async"
NOW = 4e9
# What the trainer logged as frac_reward_zero_std at steps 81 to 90 (trl_real/sync, trainer_state.json).
LOGGED = [0.25, 0.125, 0.25, 0.0, 0.125, 0.125, 0.25, 0.0, 0.0, 0.125]


def groups(records: list[Rollout]) -> dict[int, list[list[Rollout]]]:
    """Groups by the step that trained them."""
    found: dict[int, dict[str, list[Rollout]]] = defaultdict(lambda: defaultdict(list))
    for one in records:
        assert one.consumptions[0].version is not None
        found[one.consumptions[0].version + 1][one.group_id].append(one)
    return {step: list(members.values()) for step, members in found.items()}


def zero(members: list[Rollout]) -> bool:
    return len({one.reward for one in members}) == 1


def test_the_zero_advantage_ratio_is_what_the_trainer_logged() -> None:
    found = groups(tailed(trl_completions.COLLECTOR, SYNC, NOW)[0])
    ratios = [sum(map(zero, found[step])) / len(found[step]) for step in range(81, 91)]
    assert ratios == LOGGED
    assert sum(ratios) / 10 == 0.125
    assert {len(members) for step in range(81, 91) for members in found[step]} == {4}


def test_a_recorded_completion() -> None:
    shown = {one.rollout_id: one for one in tailed(trl_completions.COLLECTOR, SYNC, NOW)[0]}
    one = shown["90/1"]
    assert (one.group_id, one.group_size, one.purpose, one.reward) == ("90/g0", 4, "train", 0.5)
    assert one.advantage == pytest.approx(-1.3905378580093384)
    assert (one.version_start, one.version_finish, one.consumptions[0].version) == (89, 89, 89)
    assert (one.turn_count, one.tool_calls, one.response_tokens, one.truncated, one.exit) == (1, 0, None, None, None)
    # Which steps lie before the first file nobody knows: that one may be of ten.
    assert shown["79/0"].sampled and shown["79/0"].version_start is None and not shown["80/0"].sampled


def completions(path: Path, rows: list[dict[str, object]], step: int) -> None:
    table = pyarrow.Table.from_pylist([{"step": step, **row} for row in rows])
    folder = path / "completions"
    folder.mkdir(exist_ok=True)
    writer.write_table(table, folder / f"completions_{step:05d}.parquet")
    os.utime(folder / f"completions_{step:05d}.parquet", (EPOCH + step, EPOCH + step))


def row(prompt: str, rewards: tuple[float | None, float | None], gain: float, score: float = 0.0) -> dict[str, object]:
    return {"prompt": prompt, "completion": f"answer to {prompt}", "right": rewards[0], "short": rewards[1],
            "confidence": score, "advantage": gain}  # fmt: skip


def test_columns_of_ones_own_are_no_rewards(tmp_path: Path) -> None:
    """`confidence` (log_extra) is a number like the rewards before it, but the advantages do not follow it."""
    rows = [row("a", (1.0, 0.5), 0.7, 0.1), row("a", (0.0, math.nan), -0.7, 0.9), row("b", (None, None), 0.0, 0.3),
            row("b", (0.0, 0.0), 0.0, 0.4)]  # fmt: skip
    completions(tmp_path, rows, 1)
    found = tailed(trl_completions.COLLECTOR, tmp_path, NOW)[0]
    assert [one.reward for one in found] == [1.5, 0.0, None, 0.0]
    assert [one.turn_count for one in found] == [None] * 4


def test_a_batch_that_is_trained_twice_is_the_same_rollouts(tmp_path: Path) -> None:
    first = [row("a", (1.0, 0.0), 0.7), row("a", (0.0, 0.0), -0.7)]
    later = [row("c", (1.0, 0.0), 0.7), row("c", (0.0, 0.0), -0.7)]
    for step, rows in ((1, first), (2, first), (3, later)):
        completions(tmp_path, rows, step)
    found = merged(tailed(trl_completions.COLLECTOR, tmp_path, NOW)[0])
    assert sorted(found) == ["1/0", "1/1", "3/0", "3/1"]
    assert found["1/0"].consumptions == (Consumption(0, EPOCH + 1), Consumption(1, EPOCH + 2))
    assert found["1/0"].version_start == 0 and not found["1/0"].sampled
    assert found["3/0"].consumptions == (Consumption(2, EPOCH + 3),)


def test_what_is_logged_every_tenth_step_is_a_sample(tmp_path: Path) -> None:
    for step in (10, 20):
        completions(tmp_path, [row(f"{step}", (1.0, 0.0), 0.7), row(f"{step}", (0.0, 0.0), -0.7)], step)
    found = tailed(trl_completions.COLLECTOR, tmp_path, NOW)[0]
    assert [(one.sampled, one.version_start) for one in found] == [(True, None)] * 4
    assert [one.consumptions[0].version for one in found] == [9, 9, 19, 19]


def test_a_prompt_drawn_twice_in_a_row_does_not_double_the_group() -> None:
    assert trl_completions.group_size([b"a"] * 4 + [b"b"] * 8 + [b"c"] * 4) == 4
    assert trl_completions.group_size([b"a"] * 3) == 3


def test_rewards_with_weights_are_their_plain_sum(tmp_path: Path) -> None:
    """Weights -1 and 1: no sum of columns orders the group as its advantages do, so all of them count."""
    rows = [row("a", (1.0, 0.0), -1.0), row("a", (0.0, 2.0), 1.2), row("a", (0.5, 0.5), -0.2)]
    completions(tmp_path, [{**one, "confidence": None} for one in rows], 1)
    assert [one.reward for one in tailed(trl_completions.COLLECTOR, tmp_path, NOW)[0]] == [1.0, 2.0, 1.0]


def test_half_a_file_is_dropped_with_its_reason_and_its_neighbours_are_read(tmp_path: Path) -> None:
    shutil.copytree(SYNC, tmp_path / "run")
    file = tmp_path / "run/completions/completions_00085.parquet"
    file.write_bytes(file.read_bytes()[:4000])
    reading = trl_completions.COLLECTOR.tail(tmp_path / "run", {}, Limits(), NOW)  # type: ignore[misc]
    assert (reading.dropped, len(reading.rollouts)) == (1, 11 * 32)
    assert reading.why_dropped == "completions_00085.parquet is not a complete Parquet file: ArrowInvalid"


def test_without_pyarrow_the_target_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    assert "uv tool install '.[parquet]'" in (trl_completions.matches_path(SYNC) or "")
    with pytest.raises(ScrapeError, match=r"uv tool install '\.\[parquet\]'") as caught:
        trl_completions.tail(SYNC, {}, Limits(), NOW)
    assert caught.value.kind == "missing"


def test_recorded_traces_are_a_sample_with_their_versions() -> None:
    """Step 16 of the recorded run: a group that was dispatched at version 13 is trained at 16."""
    found, cursor, dropped = tailed(trl_traces.COLLECTOR, ASYNC, NOW)
    assert (len(found), dropped, cursor["row"]) == (40, 0, 40)
    one = {record.rollout_id: record for record in found}["16/1"]
    assert (one.group_id, one.group_size, one.version_dispatched) == ("106", 4, 13)
    assert one.consumptions == (Consumption(16, 1795250178.0247),)
    assert (one.prompt_tokens, one.response_tokens, one.loss_tokens, one.reward) == (23, 200, 200, 1.0)
    assert all(record.sampled for record in found)
    # 8 at each of versions 8, 16, 24, 32 and 40, all dispatched three versions before.
    assert {(use.version, record.version_dispatched) for record in found for use in record.consumptions} == {
        (8, 5), (16, 13), (24, 21), (32, 29), (40, 37)
    }  # fmt: skip
    assert tailed(trl_traces.COLLECTOR, ASYNC, NOW, cursor=cursor)[0] == []


def test_traces_in_parts_are_the_same_traces() -> None:
    whole = tailed(trl_traces.COLLECTOR, ASYNC, NOW)[0]
    assert tailed(trl_traces.COLLECTOR, ASYNC, NOW, Limits(tail_rows=7))[0] == whole


def test_a_synchronous_runs_database_has_no_traces() -> None:
    assert trl_traces.matches_path(TESTDATA / "trl/sync") is None
