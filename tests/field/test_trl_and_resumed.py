"""TRL's logs of other versions and forks, what its trainer prints, and runs that were resumed in another directory."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from collectors.detect import detect_path
from collectors.model import Limits
from collectors.trainers import ms_swift, trl
from tests.collectors import _events as event_file
from tests.collectors import _wandb as wandb_file
from tests.field.product import INPUTS, RUN, Product, watching

ZERO = 'zero_advantage_ratio{basis="completed"}'


def newest(product: Product) -> dict[str, float]:
    """The values of the newest step."""
    values = product.reader.steps.newest(RUN, 1)[-1].values
    return dict(values)


def components(path: Path) -> dict[str, float]:
    """The newest mean of each reward function, which no signal shows yet."""
    assert trl.COLLECTOR.tail is not None
    samples = trl.COLLECTOR.tail(path, {}, Limits(), 2e9).samples
    return {sample.labels[0][1]: sample.value for sample in samples if sample.metric == "reward_component_mean"}


@pytest.mark.parametrize("log", ["wandb", "tensorboard"])
def test_keys_of_early_2025(log: str) -> None:
    with watching([INPUTS / "14-trl-old-keys" / log], 1795601010.0) as product:
        product.step(60)
        # Steps 31 to 40: reward 1.4 + step / 1000, length 232 + step, a row every 25 s.
        assert product.value('reward{stat="mean"}') == pytest.approx(1.4355)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(267.5)
        assert product.value("trainer_step_seconds") == pytest.approx(25.0)
        assert newest(product)["reference_kl_mean"] == pytest.approx(0.0005)
    assert components(INPUTS / "14-trl-old-keys" / log) == pytest.approx({"format_reward": 1.0, "accuracy_reward": 0.4})


def test_evaluations_under_the_keys_of_training() -> None:
    with watching([INPUTS / "11-trl-eval-rows-as-train"], 1795600815.0) as product:
        product.step(60)
        assert product.value('reward{stat="mean"}') == pytest.approx(0.30)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(400.0)
        assert product.value(ZERO) == pytest.approx(0.25)
        assert product.value("truncation_ratio") == pytest.approx(0.04)
        assert product.value("trainer_step_seconds") == pytest.approx(20.0)
        # An evaluation after every 5th step, 9 s after the step's own row.
        evaluations = product.reader.runs.events(RUN, 0, 2e9, ("eval",))
    assert [event.ts - 1795600000 for event in evaluations] == [109, 209, 309, 409, 509, 609, 709, 809]


def at(source: Path, now: float) -> Path:
    """The log with a time of its last change, because its rows have no times."""
    os.utime(source, (now - 5, now - 5))
    return source


def copied(case: str, name: str, folder: Path, now: float) -> Path:
    shutil.copy(INPUTS / case / name, folder / Path(name).name)
    return at(folder / Path(name).name, now)


NOW = 1795700000.0


def test_only_what_trl_prints(tmp_path: Path) -> None:
    copied("06d-trl-printed-dicts", "train.log", tmp_path, NOW)
    with watching([tmp_path], NOW) as product:
        product.step(60)
        # Steps 21 to 30: reward 0.2 + step / 100, length 163 + 2 x step, step time 21.5 + step / 10.
        assert product.value('reward{stat="mean"}') == pytest.approx(0.455)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(214.0)
        assert product.value("trainer_step_seconds") == pytest.approx(24.05)
        # 0, 1/8 and 1/4 by turns: 21 and 30 are multiples of three, so four steps have 0, three 1/8 and three 1/4.
        assert product.value(ZERO) == pytest.approx(0.1125)
        assert product.value("truncation_ratio") == pytest.approx((0.01 * 3 + 0.02 * 3 + 0.03 * 2) / 10)
        step = product.reader.steps.newest(RUN, 1)[-1]
        assert (step.step, step.values["entropy_mean"]) == (30, pytest.approx(0.52))
        assert product.status().facts["max_steps"] == 1752


BAR = " {percent:2d}%|▏         | {step}/{total} [{clock}<9:22:01, {speed:.2f}s/it]"


def bar(step: int, total: int, clock: str) -> str:
    return BAR.format(percent=step * 100 // total, step=step, total=total, clock=clock, speed=30.0)


@pytest.mark.parametrize("quoted", [False, True], ids=["transformers 4", "transformers 5"])
def test_bars_and_dicts_between_other_output(tmp_path: Path, quoted: bool) -> None:
    """A dict every 5 steps of 30 s, an evaluation with a bar of its own, a reward function's bar, `\\r` in one line."""
    lines = ["Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.5it/s]", bar(0, 200, "00:00")]
    for step in range(5, 41, 5):
        lines.append("\r".join(bar(n, 200, f"{n // 2:02d}:{n % 2 * 30:02d}") for n in range(step - 4, step)))
        lines.append("100%|██████████| 64/64 [00:03<00:00, 20.00it/s]")
        lines.append(bar(step, 200, f"{step // 2:02d}:{step % 2 * 30:02d}"))
        values = {"loss": 0.01, "grad_norm": 0.5, "reward": step / 100, "reward_std": 0.2, "completion_length": 300.5}
        lines.append(str({key: str(value) for key, value in values.items()} if quoted else values))
        if step == 20:
            lines.append(bar(13, 13, "00:40"))
            lines.append("{'eval_loss': '0.1', 'eval_reward': '0.9', 'eval_runtime': '40.0', 'epoch': '0.1'}")
    (tmp_path / "job.out").write_text("\n".join(lines) + "\n")
    at(tmp_path / "job.out", NOW)
    with watching([tmp_path / "job.out"], NOW) as product:
        product.step(60)
        steps = product.reader.steps.newest(RUN, 40)
        events = product.reader.runs.events(RUN, 0, 2e9, ("eval",))
        # The evaluation took part of the time before step 25, so that step has no duration.
        assert product.value("trainer_step_seconds") == pytest.approx(30.0)
    assert [step.step for step in steps] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [step.values["reward_mean"] for step in steps] == pytest.approx([n / 100 for n in range(5, 41, 5)])
    assert len(events) == 1
    # 150 s between the rows, by the bar.
    assert steps[-1].ts - steps[-2].ts == pytest.approx(150.0)


def test_a_log_of_other_training_is_not_taken(tmp_path: Path) -> None:
    """Supervised fine-tuning and DPO print dicts, too."""
    text = "".join(
        f"{bar(n, 90, f'00:{n:02d}')}\n{{'loss': 0.5, 'rewards/chosen': 0.1, 'rewards/margins': 2.0, 'epoch': 0.1}}\n"
        for n in range(1, 9)
    )
    (tmp_path / "train.log").write_text(text)
    assert detect_path(tmp_path) == []


def test_ms_swift_logging_jsonl(tmp_path: Path) -> None:
    name = "v0-20261120-091500/logging.jsonl"
    copied("06e-ms-swift-logging-jsonl", name, tmp_path, NOW)
    with watching([tmp_path], NOW) as product:
        product.step(60)
        # The last ten steps that have them, 7 to 25 by twos: reward 0.7 + step / 250, length 2302.4 + step.
        assert product.value('reward{stat="mean"}') == pytest.approx(0.784)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(2323.4)
        assert product.value(ZERO) == pytest.approx(0.515625)
        assert product.value("trainer_step_seconds") == pytest.approx(36.0)
        steps = product.reader.steps.newest(RUN, 40)
        assert product.status().facts["framework"] == "ms_swift"
    assert [step.step for step in steps] == list(range(1, 26))
    assert "reward_mean" not in steps[-2].values
    assert steps[-1].ts - steps[0].ts == pytest.approx(24 * 36.0)


@pytest.mark.parametrize("printed", [False, True], ids=["logging.jsonl", "printed"])
def test_ms_swift_with_generations_of_two_steps(tmp_path: Path, printed: bool) -> None:
    """Before 3.10 the speed is in steps per second, and a step is 200 s with a generation and 10 s without."""
    rows: list[dict[str, object]] = []
    elapsed = 0
    for step in range(1, 13):
        elapsed += 200 if step % 2 else 10
        row: dict[str, object] = {"loss": 0.1, "grad_norm": 0.03, "kl": 0.0}
        row |= {"reward": 0.5, "completions/mean_length": 100.0, "frac_reward_zero_std": 0.25} if step % 2 else {}
        minutes, seconds = divmod(elapsed, 60)
        row |= {"epoch": 0.01, "global_step/max_steps": f"{step}/12", "elapsed_time": f"{minutes}m {seconds}s"}
        rows.append(row | {"memory(GiB)": 50.1, "train_speed(iter/s)": round(step / elapsed, 6)})
    if printed:
        log = tmp_path / "train.log"
        log.write_text(
            "".join(f"Train:  1%|▏  | {n}/12 [00:10<0:01, 9.0s/it]\n{row}\n" for n, row in enumerate(rows, 1))
        )
    else:
        log = tmp_path / "logging.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"last_model_checkpoint": "x"}\n')
    at(log, NOW)
    with watching([tmp_path], NOW) as product:
        status = product.step(60)
        assert product.value("trainer_step_seconds") == pytest.approx(105.0)
        steps = product.reader.steps.newest(RUN, 40)
        assert status.facts["framework"] == "ms_swift"
    assert [step.values["trainer_step_seconds"] for step in steps[1:]] == pytest.approx([10, 200] * 5 + [10])
    assert steps[-1].ts - steps[0].ts == pytest.approx(elapsed - 200)


def test_ms_swift_megatron() -> None:
    with watching([INPUTS / "06g-ms-swift-megatron-text"], MEGATRON) as product:
        product.step(60)
        # Iterations 6 to 15: 215.613 + iteration / 1000 s, reward 0.7617 + iteration / 1000, length 4041.3 + iteration.
        assert product.value("trainer_step_seconds") == pytest.approx(215.6235)
        assert product.value('reward{stat="mean"}') == pytest.approx(0.7722)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(4051.8)
        assert product.value(ZERO) == pytest.approx(0.71875)
        assert product.value("gradient_norm") == pytest.approx(0.016)
        assert product.value("gradient_nonfinite_steps") == 0
        step = product.reader.steps.newest(RUN, 1)[-1]
    assert (step.step, step.values["trainer_samples"]) == (15, 64)


# The dates of the lines have no zone.
MEGATRON = datetime.fromisoformat("2026-11-25 10:40:35").timestamp()


def steps_of(product: Product) -> list[tuple[int, int]]:
    """(incarnation, step) of every step."""
    return [(step.life, step.step) for step in product.reader.steps.times(RUN, 0, 2e9)]


def restarts(product: Product) -> list[float]:
    return [event.ts for event in product.reader.runs.events(RUN, 0, 2e9, ("restart",))]


def test_a_resumed_run_in_two_offline_folders_of_wandb() -> None:
    with watching([INPUTS / "05-wandb-offline-resumed"], 1795640590.0) as product:
        product.step(60)
        # Drift and plateaus compare all steps, because none of them is repeated.
        assert steps_of(product) == [(0, n) for n in range(1, 61)]
        assert restarts(product) == [1795640000.0]
        # Steps 51 to 60: reward 0.2 + step / 200.
        assert product.value('reward{stat="mean"}') == pytest.approx(0.4775)
        assert product.value("trainer_step_seconds") == pytest.approx(30.0)


def test_a_resumed_run_with_a_folder_of_events_per_start() -> None:
    with watching([INPUTS / "13-tensorboard-resumed"], 1795630620.0) as product:
        product.step(60)
        assert steps_of(product) == [*((0, n) for n in range(1, 41)), *((1, n) for n in range(31, 61))]
        assert restarts(product) == [1795630020.0]
        assert product.value('reward{stat="mean"}') == pytest.approx(0.3555)
        assert product.value("trainer_step_seconds") == pytest.approx(20.0)


def events_of(folder: Path, first: int, last: int, begun: int, reward: float = 0.3) -> Path:
    """A folder with one event file: steps of 20 s. The times of the files are those of a copy, all the same."""
    folder.mkdir(parents=True)
    out = b""
    for step in range(first, last + 1):
        values = {"reward": reward, "frac_reward_zero_std": 0.1, "step_time": 20.0, "loss": 0.01}
        scalars = [event_file.simple(f"train/{key}", value) for key, value in values.items()]
        out += event_file.record(event_file.event(begun + 20.0 * (step - first), step, *scalars))
    file = folder / event_file.name(begun)
    file.write_bytes(out)
    for path in (file, folder):
        os.utime(path, (NOW, NOW))
    return file


def watched_steps(folder: Path) -> list[tuple[int, int]]:
    with watching([folder], NOW) as product:
        product.step(120)
        return steps_of(product)


def test_three_starts_whose_names_are_not_in_order(tmp_path: Path) -> None:
    events_of(tmp_path / "runs" / "Nov30_10-00-00_a", 1, 10, 1795690000)
    events_of(tmp_path / "runs" / "Dec01_09-00-00_b", 11, 20, 1795691000)
    events_of(tmp_path / "runs" / "Dec02_09-00-00_c", 16, 25, 1795692000)
    assert watched_steps(tmp_path) == [*((0, n) for n in range(1, 21)), *((1, n) for n in range(16, 26))]


def test_runs_of_a_sweep_are_not_joined(tmp_path: Path) -> None:
    """Each begins at its first step, one with an evaluation before it; the newest is read."""
    events_of(tmp_path / "runs" / "a", 0, 10, 1795690000)
    events_of(tmp_path / "runs" / "b", 1, 10, 1795691000)
    newest = events_of(tmp_path / "runs" / "c", 1, 10, 1795692000)
    os.utime(newest, (NOW + 1, NOW + 1))
    assert watched_steps(tmp_path) == [(0, n) for n in range(1, 11)]


def test_runs_at_the_same_time_are_not_joined(tmp_path: Path) -> None:
    events_of(tmp_path / "runs" / "a", 1, 40, 1795691000)
    newest = events_of(tmp_path / "runs" / "b", 31, 40, 1795691200)
    os.utime(newest, (NOW + 1, NOW + 1))
    assert watched_steps(tmp_path) == [(0, n) for n in range(31, 41)]


def wandb_of(folder: Path, run: str, first: int, last: int, begun: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [wandb_file.field(5, wandb_file.item("num_generations", 8))]
    for step in range(first, last + 1):
        values = {"train/reward": 0.3, "train/frac_reward_zero_std": 0.1, "train/step_time": 20.0, "train/loss": 0.1}
        values |= {"train/global_step": step, "_step": step, "_timestamp": begun + 20.0 * (step - first)}
        rows.append(wandb_file.field(2, b"".join(wandb_file.item(key, value) for key, value in values.items())))
    file = wandb_file.write(folder / f"run-{run}.wandb", wandb_file.journal(rows))
    os.utime(file, (NOW, NOW))


def test_the_id_of_a_wandb_run_decides(tmp_path: Path) -> None:
    """A run resumed from a checkpoint, and a run of another id that would continue its steps."""
    wandb_of(tmp_path / "run-20261126_100000-aaa", "aaa", 1, 20, NOW - 3000)
    wandb_of(tmp_path / "run-20261126_110000-bbb", "bbb", 21, 30, NOW - 2500)
    wandb_of(tmp_path / "run-20261126_120000-aaa", "aaa", 15, 30, NOW - 2000)
    assert watched_steps(tmp_path) == [*((0, n) for n in range(1, 21)), *((1, n) for n in range(15, 31))]


def test_a_start_without_rows_is_the_newest(tmp_path: Path) -> None:
    wandb_of(tmp_path / "run-20261126_100000-aaa", "aaa", 1, 20, NOW - 3000)
    wandb_of(tmp_path / "run-20261126_120000-aaa", "aaa", 1, 0, NOW)
    with watching([tmp_path], NOW) as product:
        product.step(60)
        wandb_of(tmp_path / "run-20261126_120000-aaa", "aaa", 21, 25, NOW + 60)
        product.step(120)
        assert steps_of(product) == [(0, n) for n in range(1, 26)]


def test_dicts_without_bars_are_numbered(tmp_path: Path) -> None:
    """Only stdout is in the file."""
    row = {"loss": 0.1, "reward": 0.5, "completions/mean_length": 300.0, "reward_std": 0.2, "step_time": 30.0}
    (tmp_path / "train.log").write_text(f"{row}\n" * 12)
    at(tmp_path / "train.log", NOW)
    assert watched_steps(tmp_path) == [(0, n) for n in range(1, 13)]


def test_processes_that_share_a_wandb_run_are_not_joined(tmp_path: Path) -> None:
    wandb_of(tmp_path / "run-20261126_100000-aaa", "aaa", 1, 20, NOW - 3000)
    wandb_of(tmp_path / "run-20261126_100001-aaa", "aaa", 1, 20, NOW - 2999)
    assert watched_steps(tmp_path) == [(0, n) for n in range(1, 21)]


def test_a_run_that_is_resumed_while_it_is_watched(tmp_path: Path) -> None:
    events_of(tmp_path / "runs" / "a", 1, 10, 1795690000)
    with watching([tmp_path], NOW) as product:
        product.step(30)
        newest = events_of(tmp_path / "runs" / "b", 6, 15, 1795691000)
        os.utime(newest.parent, (NOW + 1, NOW + 1))
        product.step(60)
        assert steps_of(product) == [*((0, n) for n in range(1, 11)), *((1, n) for n in range(6, 16))]


def swift_of(folder: Path, first: int, last: int, padding: int = 0) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for step in range(first, last + 1):
        row: dict[str, object] = {"loss": 0.1, "reward": step / 1000, "completions/mean_length": 100.0}
        row |= {"global_step/max_steps": f"{step}/5000", "elapsed_time": f"{30 * (step - first + 1)}s"}
        lines.append(json.dumps(row | {"train_speed(s/it)": 30.0, "note": "x" * padding}))
    (folder / "logging.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "logging.jsonl"


def test_ms_swift_makes_a_folder_per_start(tmp_path: Path) -> None:
    """v10 is after v9; without times in the rows, the steps and the names have the order."""
    at(swift_of(tmp_path / "v9-20261125-100000", 1, 30), NOW - 900)
    at(swift_of(tmp_path / "v10-20261125-180000", 21, 40), NOW)
    assert watched_steps(tmp_path) == [*((0, n) for n in range(1, 31)), *((1, n) for n in range(21, 41))]


def test_the_newest_steps_of_a_long_resumed_log_are_found_first(tmp_path: Path) -> None:
    at(swift_of(tmp_path / "v0-20261120-100000", 1, 300, 2000), NOW - 90_000)
    newest = at(swift_of(tmp_path / "v1-20261121-100000", 201, 2000, 2000), NOW)
    recent, tail = ms_swift.COLLECTOR.recent, ms_swift.COLLECTOR.tail
    assert recent is not None and tail is not None
    cursor = recent(tmp_path, Limits(), NOW, 100_000)
    assert cursor is not None and cursor["source"]["path"] == str(newest)
    steps = [sample.step for sample in tail(tmp_path, cursor, Limits(), NOW).samples if sample.metric == "reward_mean"]
    assert steps[-1] == 2000 and (steps[0] or 0) > 1900
