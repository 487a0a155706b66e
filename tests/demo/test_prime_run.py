"""The run directory: prime-rl's files, keys and log lines, and their agreement with the truth."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from demo.process import Demo
from tests.demo.conftest import BASE, START

SECONDS = 400.0
Row = dict[str, float]


@pytest.fixture(scope="module", params=sorted(BASE))
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = Demo(request.param, 1, tmp_path_factory.mktemp("demo"), START)
    made.advance(START + SECONDS)
    yield made
    made.close()


@pytest.fixture
def run_dir(demo: Demo) -> Path:
    return Path(str(demo.ready["run_dir"]))


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def rows(run_dir: Path) -> list[Row]:
    return lines(run_dir / "metrics.jsonl")


@pytest.fixture
def truth(demo: Demo) -> list[Row]:
    return lines(Path(str(demo.ready["truth"])))


def by_step(rows: list[Row], key: str) -> dict[float, Row]:
    return {row["step"]: row for row in rows if key in row}


def test_five_trainer_rows_and_one_orchestrator_row_per_step(rows: list[Row], truth: list[Row]) -> None:
    for step in truth:
        of_step = [row for row in rows if row["step"] == step["step"]]
        kinds = ["progress/tokens", "perf/mfu", "optim/lr", "loss/mean", "time/forward_backward"]
        assert [sum(kind in row for row in of_step) for kind in kinds] == [1] * 5
        assert sum("system/ckpt_disk_free_gib" in row for row in of_step) == 1
        assert len(of_step) == 6


def test_rows_come_in_event_time(rows: list[Row]) -> None:
    stamps = [row["time"] for row in rows]
    assert stamps == sorted(stamps)
    assert all(list(row)[:2] == ["step", "time"] for row in rows)


def test_trainer_rows_tell_the_truth(rows: list[Row], truth: list[Row]) -> None:
    times = by_step(rows, "time/forward_backward")
    for step in truth:
        row = times[step["step"]]
        assert row["time"] == pytest.approx(step["end"], abs=0.01)
        for key, name in (
            ("time/step", "step_seconds"),
            ("time/wait_for_batch", "wait_seconds"),
            ("time/forward_backward", "compute_seconds"),
            ("time/broadcast_weights", "weight_sync_seconds"),
            ("time/save_ckpt", "checkpoint_seconds"),
            ("time/load_data", "other_seconds"),
        ):
            assert row[key] == step[name]


def test_orchestrator_rows_tell_the_truth(demo: Demo, rows: list[Row], truth: list[Row]) -> None:
    shipped = by_step(rows, "progress/rollouts")
    for step in truth:
        row = shipped[step["step"]]
        for key, name in (
            ("off_policy/mean", "staleness_mean"),
            ("off_policy/max", "staleness_max"),
            ("off_policy/in_flight/mean", "staleness_in_flight_mean"),
            ("train/agg/all/agent/solved_all", "all_solved_ratio"),
            ("train/agg/all/agent/solved_none", "none_solved_ratio"),
            ("train/agg/effective/agent/reward/mean", "reward_mean"),
            ("train/agg/effective/num_output_tokens/mean", "response_tokens_mean"),
            ("train/agg/effective/num_output_tokens/max", "response_tokens_max"),
            ("train/agg/effective/agent/is_truncated/mean", "truncated_ratio"),
            ("progress/output_tokens", "tokens"),
        ):
            assert row[key] == pytest.approx(step[name]), key
        lost = row["progress/rollouts"] - step["samples"]
        assert lost == round(row["train/agg/all/has_error/mean"] * row["progress/rollouts"])
        assert lost == 0 or demo.cluster.scenario.losses
        assert row["train/agg/all/agent/solved_some"] == pytest.approx(1 - step["zero_advantage_ratio"])


def test_truth_steps_follow_each_other_and_add_up(demo: Demo, truth: list[Row]) -> None:
    assert truth[0]["start"] == demo.start
    for before, after in pairwise(truth):
        assert after["start"] == before["end"]
        assert after["step"] == before["step"] + 1
    for step in truth:
        parts = ("wait", "compute", "weight_sync", "checkpoint", "other")
        assert step["step_seconds"] == pytest.approx(sum(step[f"{part}_seconds"] for part in parts))
        assert step["end"] - step["start"] == pytest.approx(step["step_seconds"], abs=1e-5)


def test_truth_lies_outside_the_run_directory(demo: Demo, run_dir: Path) -> None:
    assert not any("truth" in path.name for path in run_dir.rglob("*"))
    about = json.loads((run_dir.parent / "truth.json").read_text())
    assert about["scenario"] == demo.cluster.scenario.name
    assert about["expected"]["capacity_samples_per_second"] > 0


def test_pipeline_lines_show_the_buffer_every_two_seconds(demo: Demo, run_dir: Path) -> None:
    log = (run_dir / "logs/latest/orchestrator.log").read_text().splitlines()
    pattern = (
        r"\d\d:\d\d:\d\d    INFO Train batch (\d+)/256 \(\d+\.\d%\)(?: \(\+(\d+) buffered\))?; "
        r"(\d+) inflight episodes \(train=\3, eval=0\)"
    )
    found = [re.fullmatch(pattern, line) for line in log if "Train batch" in line]
    assert len(found) == (START + SECONDS - demo.start) / 2
    assert all(match and int(match[1]) <= 256 for match in found)


def test_step_lines(demo: Demo, run_dir: Path, truth: list[Row]) -> None:
    trainer = re.findall(
        r"^\d\d:\d\d:\d\d SUCCESS Step (\d+) \| +\S+(?: \d+s)? \| Loss -?[\d.]+ \| Entropy [\d.]+ "
        r"\| Mismatch KL [\d.]+ \| Grad\. Norm [\d.]+ \| LR 1\.00e-06 \| Throughput \d+ tokens/s "
        r"\| MFU [\d.]+% \| Peak Mem\. [\d.]+ GiB$",
        (run_dir / "logs/latest/trainer.log").read_text(),
        re.MULTILINE,
    )
    assert [int(step) for step in trainer] == [step["step"] for step in truth]
    orchestrator = re.findall(
        r"^\d\d:\d\d:\d\d SUCCESS Step (\d+) \| .* \| Reward 0\.\d{4} \| Trainable \d+/256 \(\d+\.\d%\) \| Turns "
        + (r"(?:4\.[5-9]|5\.[0-5]) " if demo.cluster.scenario.sandboxes else r"1\.0 "),
        (run_dir / "logs/latest/orchestrator.log").read_text(),
        re.MULTILINE,
    )
    assert len(orchestrator) >= len(truth)


def test_configs_name_the_run_and_its_engines(demo: Demo, run_dir: Path) -> None:
    launcher = json.loads((run_dir / "configs/rl.json").read_text())
    orchestrator = launcher["orchestrator"]
    assert orchestrator == json.loads((run_dir / "configs/orchestrator.json").read_text())
    assert launcher["trainer"] == json.loads((run_dir / "configs/trainer.json").read_text())
    assert orchestrator["model"]["client"]["admin_base_url"] == demo.ready["engines"]
    sizes = (orchestrator["batch_size"], orchestrator["group_size"], orchestrator["max_off_policy_steps"])
    assert sizes == (256, 8, 8)
    gpus = {"num_train_gpus": demo.cluster.scenario.train_gpus, "num_infer_gpus": demo.cluster.scenario.engines}
    assert launcher["deployment"] | gpus == launcher["deployment"]
    assert launcher["max_steps"] is None
    assert launcher["output_dir"] == str(run_dir)


def test_files_carry_event_time(demo: Demo, run_dir: Path, rows: list[Row]) -> None:
    assert (run_dir / "configs/rl.json").stat().st_mtime == demo.start
    assert (run_dir / "metrics.jsonl").stat().st_mtime == pytest.approx(rows[-1]["time"], abs=1e-3)
    assert (run_dir / "logs/latest/orchestrator.log").stat().st_mtime == pytest.approx(START + SECONDS, abs=5)


def test_the_newest_broadcasts_are_kept(run_dir: Path, truth: list[Row]) -> None:
    kept = sorted(int(path.parent.name.removeprefix("step_")) for path in run_dir.glob("broadcasts/step_*/STABLE"))
    newest = max(kept)
    assert kept == [newest - 2, newest - 1, newest]
    assert newest in (truth[-1]["policy_version"], truth[-1]["policy_version"] + 1)


def test_nothing_changes_in_a_finished_line(demo: Demo, run_dir: Path) -> None:
    """Files only grow: what a reader has read stays as it was."""
    names = ("metrics.jsonl", "logs/latest/trainer.log", "logs/latest/orchestrator.log")
    before = {name: (run_dir / name).read_bytes() for name in names}
    demo.advance(START + SECONDS + 60)
    for name in names:
        after = (run_dir / name).read_bytes()
        assert after.startswith(before[name])
        assert after.endswith(b"\n")
