"""TRL's logs of other versions and forks, what its trainer prints, and runs that were resumed in another directory."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from collectors.detect import detect_path
from collectors.model import Limits
from collectors.trainers.trl import collector as trl
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
        assert product.value('reward{stat="mean"}') == pytest.approx(0.764)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(2318.4)
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
