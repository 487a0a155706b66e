"""Every adapter of step files: a back-fill and a live tail give the same rollouts, whatever the limits and moments."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from collectors.model import Collector, Limits, Rollout
from collectors.rollouts import (
    miles_rollouts,
    nemo_rl_rollouts,
    open_instruct_rollouts,
    roll_rollouts,
    tinker_rollouts,
    trl_completions,
    verl_rollouts,
)
from server.alerts.settings import AlertSettings
from server.cli import check_report as check
from server.targets.model import RunSettings, TargetSettings
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts import _written as dump
from tests.collectors.rollouts._written import EPOCH, event, jsonl, merged, tailed, write

Writes = list[tuple[str, bytes]]
REWARDS = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.5]]


def _events() -> list[bytes]:
    """Three rollouts of four samples: turns with tools, an aborted one that goes on, versions told late and at once."""
    first = [
        event(10, "attempt_start", 0), event(11, "gen_start", 0), event(11, "gen_start", 0, 1),
        event(20, "gen_end", 0, 1, "", "50"), event(21, "tool_start", 0, 1, "1", "1 calls"),
        event(25, "tool_end", 0, 1, "1", "1 calls"),
    ]  # fmt: skip
    second = [
        event(26, "gen_start", 0, 2, "1"), event(40, "gen_end", 0, 2, "1", "30"),
        event(41, "attempt_end", 0, version="2", detail="completed"), event(12, "attempt_start", 1),
        event(13, "gen_start", 1), event(42, "attempt_end", 1, version="2", detail="aborted"),
    ]  # fmt: skip
    third = [
        event(50, "attempt_start", 1, version="2"), event(51, "gen_start", 1, version="2"),
        event(60, "attempt_end", 1, version="3", detail="truncated"),
    ]  # fmt: skip
    return [jsonl(part) for part in (first, second, third)]


def _miles() -> Writes:
    one, two, three = _events()
    hour = "dashboard/trajectories/20231114_22.jsonl"
    return [
        (hour, one),
        (hour, one + two),
        ("trajectory/0.jsonl", dump.miles([(0, 1.0)])),
        (hour, one + two + three),
        ("trajectory/1.jsonl", dump.miles([(1, 0.0)], "truncated")),
        ("trajectory/eval_1.jsonl", dump.miles([(0, 0.5)])),
    ]


def _open_instruct() -> Writes:
    first = [b"".join(dump.open_instruct(step, REWARDS) for step in range(end)) for end in (1, 2, 3)]
    return [("a_rollouts_000000.jsonl", data) for data in first] + [
        ("a_rollouts_000001.jsonl", dump.open_instruct(3, REWARDS))
    ]


def _trl() -> Writes:
    folder = TESTDATA / "trl_completions/sync/completions"
    return [(f"completions/{file.name}", file.read_bytes()) for file in sorted(folder.iterdir())[:5]]


SCORES = [(prompt, reward) for prompt, members in zip("abc", REWARDS, strict=True) for reward in members]
SHUFFLED = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("c", 1.0), ("b", 0.0)]


def _tinker() -> Writes:
    name = "iteration_{:06d}/train_rollout_summaries.jsonl"
    return [(name.format(step), dump.tinker(step, REWARDS, max(0, step - 1))) for step in range(4)]


def _roll(make: Callable[[int, list[list[float]]], bytes]) -> Callable[[], Writes]:
    return lambda: [(f"rollout_dump_data.step_{step}.jsonl", make(step, REWARDS)) for step in range(3)]


CASES: dict[str, tuple[Collector, Callable[[], Writes], int]] = {
    "tinker": (tinker_rollouts.COLLECTOR, _tinker, 36),
    "verl v1": (
        verl_rollouts.COLLECTOR,
        lambda: [(f"dump/{step}.jsonl", dump.verl(step, SCORES, uid=True)) for step in range(1, 5)],
        36,
    ),
    "verl v0, shuffled": (
        verl_rollouts.COLLECTOR,
        lambda: [(f"dump/{step}.jsonl", dump.verl(step, SHUFFLED, uid=False)) for step in range(1, 4)],
        15,
    ),
    "open-instruct": (open_instruct_rollouts.COLLECTOR, _open_instruct, 36),
    "roll": (roll_rollouts.COLLECTOR, _roll(dump.roll), 27),
    "roll agentic": (roll_rollouts.COLLECTOR, _roll(dump.roll_agentic), 27),
    "nemo": (
        nemo_rl_rollouts.COLLECTOR,
        lambda: [(f"train_data_step{step}.jsonl", dump.nemo_rl(REWARDS)) for step in range(1, 4)],
        27,
    ),
    "miles": (miles_rollouts.COLLECTOR, _miles, 3),
    "trl": (trl_completions.COLLECTOR, _trl, 160),
}


def live(collector: Collector, path: Path, writes: Writes, limits: Limits) -> dict[str, Rollout]:
    """Each file as it is written, a look half way through the write, and one when it is whole and quiet."""
    cursor, found = {}, []
    for index, (name, data) in enumerate(writes):
        at = EPOCH + 100.0 * index
        before = (
            (path / name).read_bytes()
            if (path / name).exists() and data.startswith((path / name).read_bytes())
            else b""
        )
        write(path / name, data[: len(before) + (len(data) - len(before)) // 2], at)
        half, cursor, dropped = tailed(collector, path, at + 1.0, limits, cursor) if index else ([], {}, 0)
        assert dropped == 0, "what is not whole yet is not counted as broken"
        write(path / name, data, at)
        whole, cursor, dropped = tailed(collector, path, at + 10.0, limits, cursor)
        assert dropped == 0
        found += [*half, *whole]
    return merged(found)


@pytest.mark.parametrize("rows", [20_000, 10])
@pytest.mark.parametrize("case", CASES)
def test_live_and_back_filled_are_the_same_rollouts(case: str, rows: int, tmp_path: Path) -> None:
    collector, made, count = CASES[case]
    writes, limits = made(), Limits(tail_rows=rows)
    watched = live(collector, tmp_path / "live", writes, limits)
    for index, (name, data) in enumerate(writes):
        write(tmp_path / "old" / name, data, EPOCH + 100.0 * index)
    back = merged(tailed(collector, tmp_path / "old", EPOCH + 9_999.0, limits)[0])
    assert len(back) == count
    if case == "open-instruct":  # rows of a file that grew are dated between its looks; nothing else differs
        assert {key: undated(one) for key, one in watched.items()} == {key: undated(one) for key, one in back.items()}
    else:
        assert watched == back


def undated(one: Rollout) -> Rollout:
    return structs.replace(one, consumptions=tuple(structs.replace(use, at=None) for use in one.consumptions))


@pytest.mark.parametrize("case", [name for name in CASES if name not in ("open-instruct", "miles")])
def test_a_file_that_is_written_again_is_read_again_under_the_same_ids(case: str, tmp_path: Path) -> None:
    """A resumed run goes over its steps a second time: no rollout is new, and the last word counts."""
    collector, made, _ = CASES[case]
    writes = made()
    for index, (name, data) in enumerate(writes):
        write(tmp_path / name, data, EPOCH + index)
    first, cursor, _ = tailed(collector, tmp_path, EPOCH + 500.0)
    write(tmp_path / writes[0][0], writes[0][1], EPOCH + 600.0)
    again, cursor, dropped = tailed(collector, tmp_path, EPOCH + 900.0, cursor=cursor)
    assert again and dropped == 0
    assert {one.rollout_id for one in again} < {one.rollout_id for one in first}
    assert {use.at for one in again for use in one.consumptions} == {EPOCH + 600.0}
    assert tailed(collector, tmp_path, EPOCH + 950.0, cursor=cursor)[0] == []


@pytest.mark.parametrize("case", [name for name in CASES if name not in ("roll", "roll agentic", "trl", "miles")])
def test_a_broken_line_is_counted_and_the_rest_is_taken(case: str, tmp_path: Path) -> None:
    collector, made, _ = CASES[case]
    writes = made()
    name, data = writes[-1]
    rows = data.splitlines(keepends=True)
    write(tmp_path / name, b"".join([rows[0], b'{"torn": \n', b"[1, 2]\n", b'{"other": 1}\n', *rows[1:]]), EPOCH)
    found, _, dropped = tailed(collector, tmp_path, EPOCH + 500.0)
    assert (len(found), dropped) == (len(rows), 3)


def test_many_files_are_remembered_in_little(tmp_path: Path) -> None:
    for step in range(200):
        write(tmp_path / f"dump/{step}.jsonl", dump.verl(step, [("a", 1.0), ("a", 0.0)], uid=True), EPOCH + step)
    found, cursor, _ = tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH + 500.0)
    assert len(found) == 400 and len(cursor["files"]) == 16 and cursor["step"] == 183
    write(tmp_path / "dump/7.jsonl", dump.verl(7, [("a", 0.5), ("a", 0.5)], uid=True), EPOCH + 400.0)
    again = tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH + 501.0, cursor=cursor)[0]
    assert [one.reward for one in again] == [0.5, 0.5]


def test_a_file_too_new_waits_and_one_from_the_future_does_not(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", dump.verl(1, [("a", 1.0)], uid=True), EPOCH)
    assert tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH + 2.9)[0] == []
    assert len(tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH + 3.0)[0]) == 1
    assert len(tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH - 100.0)[0]) == 1


def test_a_group_longer_than_a_look_has_no_size(tmp_path: Path) -> None:
    """Ten rows of one prompt in looks of four: no look has seen the whole group; the next one is whole."""
    rows = [("a", 1.0)] * 10 + [("b", 1.0)] * 3
    write(tmp_path / "1.jsonl", dump.verl(1, rows, uid=True), EPOCH)
    found = tailed(verl_rollouts.COLLECTOR, tmp_path, EPOCH + 10.0, Limits(tail_rows=4))[0]
    assert [one.group_size for one in found] == [None] * 10 + [3] * 3
    assert len({one.rollout_id for one in found}) == 13


@pytest.mark.parametrize(
    ("apart", "copied", "delivered"),
    [(0.001, 1.0, None), (90.0, 0.0, 2 / 90)],
    ids=["copied", "as the run wrote them"],
)
def test_files_that_were_copied_give_no_rate(
    tmp_path: Path, apart: float, copied: float, delivered: float | None
) -> None:
    """14 steps of two rollouts each, written 1 ms or 90 s apart: 2 rollouts in 90 s."""
    for step in range(1, 15):
        write(tmp_path / f"{step}.jsonl", dump.verl(step, [("a", 1.0), ("b", 0.0)], uid=True), EPOCH + apart * step)
    report = check.probe([RunSettings("r", (TargetSettings(str(tmp_path)),))], AlertSettings()).runs[0]
    (seen,) = [one for one in report.seen if one.target.collector == "verl_rollouts"]
    lines = {line.name: line for line in report.lines}
    note = "files were copied: their times are not the run's; step times are unknown"
    assert seen.gaps == ((note,) if copied else ())
    assert seen.facts.get("times_copied", 0.0) == copied
    if delivered is None:
        assert lines["production_samples_per_second"].why.startswith("the rollout files were copied")
    else:
        assert lines['production_samples_per_second{stage="delivered"}'].value == pytest.approx(delivered)
