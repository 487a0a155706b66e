"""Printed logs given alone: what the product shows of them, with numbers worked out by hand from the lines."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import collectors
from collectors.model import Limits, Reading
from tests.field.product import INPUTS, Product, watching

DAY = (2026, 11, 25)


def at(clock: str, day: int = DAY[2]) -> float:
    """Epoch seconds of a local time of day."""
    hours, minutes, seconds = map(int, clock.split(":"))
    return time.mktime((DAY[0], DAY[1], day, hours, minutes, seconds, 0, 0, -1))


@contextmanager
def case(name: str, ends: str, tmp_path: Path) -> Iterator[Product]:
    """The product after one minute with a case whose files were last written at this time of day."""
    run = tmp_path / name
    shutil.copytree(INPUTS / name, run)
    for file in run.rglob("*"):
        os.utime(file, (at(ends), at(ends)))
    with watching([run], at(ends)) as product:
        product.step(60)
        yield product


def read(path: Path, text: str, ends: float | None = None) -> tuple[str, Reading]:
    """The collector that recognises this text, and its first reading. There must be one only."""
    path.write_text(text)
    if ends is not None:
        os.utime(path, (ends, ends))
    found = [name for name, one in collectors.load().items() if one.matches_path is not None and one.matches_path(path)]
    assert len(found) == 1, found
    collector = collectors.load()[found[0]]
    assert collector.tail is not None
    return found[0], collector.tail(path, {}, Limits(), path.stat().st_mtime)


def values(reading: Reading) -> dict[str, float]:
    """The last value of each metric, with its labels' values."""
    return {
        " ".join((sample.metric, *(value for _, value in sample.labels))): sample.value for sample in reading.samples
    }


def test_the_orchestrator_of_prime_rl(tmp_path: Path) -> None:
    with case("06a-prime-rl-orchestrator-log", "10:04:25", tmp_path) as product:
        # Steps 25 to 34: 0.3505, 0.3605, ... 0.4405; 74.0, 75.5, 77.0, 78.5 and so on, of which three are 74.0.
        assert product.value('reward{stat="mean"}') == pytest.approx(0.3955)
        assert product.value("trainer_step_seconds") == pytest.approx((3 * 74.0 + 3 * 75.5 + 2 * 77.0 + 2 * 78.5) / 10)
        assert product.value("policy_version") == 34
    log = INPUTS / "06a-prime-rl-orchestrator-log" / "logs" / "orchestrator.log"
    name, reading = read(tmp_path / "renamed.txt", log.read_text(), at("10:04:25"))
    assert name == "prime_rl"
    last = values(reading)
    assert last["rollout_tokens_per_second"] == pytest.approx(2343.9)
    assert last["staleness_in_flight_versions_max"] == 1
    # Step 34, one version ahead of the engines.
    assert last["generator_policy_version"] == 33
    steps = [sample for sample in reading.samples if sample.metric == "orchestrator_step_seconds"]
    assert [(sample.step, sample.ts, sample.value) for sample in (steps[0], steps[-1])] == [
        (21, at("09:47:54"), 74.0), (34, at("10:04:24"), 75.5)
    ]  # fmt: skip


def test_the_trainer_of_prime_rl(tmp_path: Path) -> None:
    with case("06b-prime-rl-trainer-log", "09:57:55", tmp_path) as product:
        # Steps 6 to 15, of which four took 41.2 s, three 42.2 s and three 43.2 s.
        assert product.value("trainer_step_seconds") == pytest.approx(42.10)
        assert product.value("gradient_norm") == pytest.approx(0.3 + 0.00105)
        assert product.value("entropy") == pytest.approx(0.6 + 0.00105)
        assert product.value("mismatch_kl") == pytest.approx(0.0021)
        assert product.value('trainer_mfu_ratio{basis="wall"}') == pytest.approx(0.312)
        assert product.value("learning_rate") == pytest.approx(1e-6)
    log = INPUTS / "06b-prime-rl-trainer-log" / "logs" / "trainer.log"
    last = values(read(tmp_path / "trainer.log", log.read_text(), at("09:57:55"))[1])
    assert last["trainer_tokens_per_second wall"] == 41_015
    assert last["trainer_peak_memory_bytes"] == 61 * 2**30
    assert last["gradient_nonfinite"] == 0
    assert "trainer_wait_seconds" not in last


TRAINER_VALUES = {"trainer_step_seconds": 74.5, "loss_mean": 0.0012, "entropy_mean": 0.6, "mismatch_kl_mean": 0.0021}
REST = " | Loss 0.0012 | Entropy 0.6000 | Mismatch KL 0.0021 | MFU 31.0%"


@pytest.mark.parametrize(
    ("line", "basis"),
    [
        ("10:00:00 SUCCESS Step 7 | Time: 74.50s | Loss: 0.0012 | Entropy: 0.6000 | Mismatch KL: 0.0021 | MFU: 31.0%",
         "wall"),
        (f"10:00:00 SUCCESS Step 7 |   74.5s{REST}", "busy"),
        (f"[default0]:10:00:00 SUCCESS Step 7 | 1m 14.5s{REST}", "busy"),
        ("\x1b[2m10:00:00\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m \x1b[1m\x1b[22mStep 7 |   74.5s"
         f"{REST}\x1b[0m [train.py::648]", "busy"),
        (f"2026-11-25 10:00:00.250 | SUCCESS  | prime_rl.trainer.rl.train:train:648 - Step 7 |  74.5s{REST}", "busy"),
        ('{"timestamp": "2026-11-25T10:00:00", "level": "SUCCESS", "message": "Step 7 |  74.5s' + REST + '"}', "busy"),
        (f"Go: 50%|##  | 1/2 [00:18<00:51]\rGo: 100%|####| 2/2 [00:30<00:00]10:00:00 SUCCESS Step 7 | 74.5s{REST}",
         "busy"),
    ],
)  # fmt: skip
def test_forms_of_the_trainers_line(line: str, basis: str, tmp_path: Path) -> None:
    name, reading = read(tmp_path / "slurm.out", f"{line}\n", at("10:00:30"))
    assert name == "prime_rl"
    found = values(reading)
    assert {metric: found[metric] for metric in TRAINER_VALUES} == pytest.approx(TRAINER_VALUES)
    assert found[f"trainer_mfu_ratio {basis}"] == pytest.approx(0.31)
    assert {sample.step for sample in reading.samples} == {7}
    assert {int((sample.ts or 0) - at("10:00:00")) for sample in reading.samples} == {0}


def test_a_norm_that_is_not_finite_and_rates_before_they_are_measured(tmp_path: Path) -> None:
    line = "Step 0 | Time: 9.00s | Loss: nan | Entropy: 0.6 | Grad. Norm: nan | Throughput: 0 tokens/s | MFU: 0.0%"
    found = values(read(tmp_path / "trainer.log", f"10:00:00 SUCCESS {line}\n")[1])
    assert found == {"trainer_step_seconds": 9.0, "entropy_mean": 0.6, "gradient_nonfinite": 1.0}


def test_a_newer_orchestrator(tmp_path: Path) -> None:
    text = (
        "10:00:00    INFO Starting orchestrator step 4\n"
        "10:00:30    INFO Orchestrator paused: waiting for trainer process to complete checkpoint 3 (>1 step(s) ahead)."
        " Training is progressing normally.\n"
        "10:00:42    INFO Orchestrator resumed: checkpoint 3 ready (after 12.25s)\n"
        "10:01:00    INFO Detected 97/128 rollouts (gibberish=2, zero_advantage=95)\n"
        "10:01:05 SUCCESS Step 4 | 1m 5s | Reward 0.5000 | Trainable 31/128 (24.2%) | Turns 3.0 | Branches 1.0 "
        "| Max Off-Policy 3 | Error 1.5% | Cancelled 0.5% | Truncation 4.0%\n"
        "10:02:10 SUCCESS Step 5 | 1m 5s | Reward 0.6000 | Trainable 128/128 (100.0%) | Turns 2.0 | Branches 1.0 "
        "| Max Off-Policy 2 | Error 0.0% | Cancelled 0.0% | Truncation 5.0%\n"
    )
    reading = read(tmp_path / "orchestrator.log", text, at("10:02:11"))[1]
    first, second = (
        {sample.metric: sample.value for sample in reading.samples if sample.step == step} for step in (4, 5)
    )
    expected = {
        "reward_mean": 0.5, "turns_mean": 3.0, "staleness_versions_max": 3.0, "rollout_error_ratio": 0.015,
        "rollout_cancelled_ratio": 0.005, "truncation_ratio": 0.04, "groups_zero_advantage_ratio": 95 / 128,
        "dispatch_gate_wait_seconds": 12.25, "orchestrator_step_seconds": 65.0, "trainer_step_seconds": 65.0,
    }  # fmt: skip
    assert first == pytest.approx(expected)
    # The version prints the two lines, so their absence is a zero.
    assert second["groups_zero_advantage_ratio"] == 0.0 and second["dispatch_gate_wait_seconds"] == 0.0
    # Of the shipped rollouts only.
    assert "trainable_ratio" not in first


def test_a_log_over_midnight_is_dated_backwards(tmp_path: Path) -> None:
    line = "SUCCESS Step {} | Time: 50.00s | Reward: 0.5 | Seq. Length: 300.0 tokens/sample | Async Level: 1"
    text = "".join(
        f"{clock} {line.format(step)}\n" for step, clock in enumerate(("23:58:20", "23:59:10", "00:00:00", "00:00:50"))
    )
    reading = read(tmp_path / "a.log", text, at("00:01:00"))[1]
    times = [sample.ts for sample in reading.samples if sample.metric == "orchestrator_step_seconds"]
    assert times == [at("23:58:20", 24), at("23:59:10", 24), at("00:00:00"), at("00:00:50")]
    # A copy made in the morning of a log of the evening before.
    os.utime(tmp_path / "a.log", (at("09:00:00"), at("09:00:00")))
    late = text.replace("00:00:", "12:00:").replace("23:58:20", "11:58:20").replace("23:59:10", "11:59:10")
    reading = read(tmp_path / "b.log", late, at("09:00:00"))[1]
    assert max(sample.ts or 0 for sample in reading.samples) == at("12:00:50", 24)


def test_logs_of_a_folder_that_grow(tmp_path: Path) -> None:
    """Both processes, read twice; the orchestrator's time is no step time when the trainer's own is there."""
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    orchestrator, trainer = logs / "orchestrator.log", logs / "trainer.log"
    orchestrator.write_text("10:00:00 SUCCESS Step 1 | Time: 50.00s | Reward: 0.5 | Async Level: 1\n")
    trainer.write_text("10:00:10 SUCCESS Step 1 | Time: 30.00s | Loss: 0.1 | Entropy: 0.5\n")
    for file in (orchestrator, trainer):
        os.utime(file, (at("10:00:20"), at("10:00:20")))
    tail = collectors.load()["prime_rl"].tail
    assert tail is not None
    first = tail(tmp_path / "run", {}, Limits(), at("10:00:20"))
    assert values(first)["trainer_step_seconds"] == 30.0 and values(first)["orchestrator_step_seconds"] == 50.0
    assert tail(tmp_path / "run", first.cursor or {}, Limits(), at("10:00:25")).samples == ()
    with trainer.open("a") as file:
        file.write(
            "10:00:45 SUCCESS Step 2 | Time: 35.00s | Loss: 0.1 | Entropy: 0.5\n10:00:46 SUCCESS RL trainer finished!\n"
        )
    second = tail(tmp_path / "run", first.cursor or {}, Limits(), at("10:00:50"))
    assert values(second)["trainer_step_seconds"] == 35.0
    assert second.facts["lifecycle"] == "finished"
    # metrics.jsonl has the steps: the printed ones are not read a second time.
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 3, "time": 1795600000, "time/forward_backward": 9.0}\n')
    with trainer.open("a") as file:
        file.write("10:01:20 SUCCESS Step 3 | Time: 36.00s | Loss: 0.1 | Entropy: 0.5\n")
    third = tail(tmp_path / "run", second.cursor or {}, Limits(), at("10:01:30"))
    assert values(third) == {"trainer_compute_seconds": 9.0}
