"""Printed logs given alone: what the product shows of them, with numbers worked out by hand from the lines."""

import calendar
import gzip
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import collectors
from collectors.model import Limits, Reading
from server.lib.errors import ConfigError
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
        " ".join((sample.metric, *(value for _, value in sample.labels))): sample.value
        for sample in sorted(reading.samples, key=lambda sample: sample.ts or 0)
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


def test_the_driver_of_nemo_rl(tmp_path: Path) -> None:
    with case("06f-nemo-rl-driver-log", "10:00:00", tmp_path) as product:
        # Steps 1 to 10: 125.5, 126.5, ... 134.5 s; of it generation 66.4, 67.4, ... 75.4 s.
        assert product.value("trainer_step_seconds") == pytest.approx(130.0)
        assert product.value('trainer_phase_seconds{phase="generation"}') == pytest.approx(70.9)
        # Training 43.2 s, log-probs 10.1 s and their preparation 1.2 s.
        assert product.value('trainer_phase_seconds{phase="compute"}') == pytest.approx(54.5)
        assert product.value("weight_sync_seconds") == pytest.approx(2.1)
        assert product.value('reward{stat="mean"}') == pytest.approx(0.5062)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(817.625)
        assert product.value("mismatch_kl") == pytest.approx(0.0012)
        # 512 rollouts per step.
        assert product.value("trainer_samples_per_second") == pytest.approx(512 / 130)
        assert product.status().facts["times_estimated"] == 1.0


NEMO_ASYNC = """\
⏳ Waiting for replay buffer to have sufficient trajectories for step 0...
  Wait iteration 0: buffer_size=0, step 0 ready=False
  Wait iteration 1: buffer_size=0, step 0 ready=False
  Wait iteration 2: buffer_size=64, step 0 ready=True

========================= Step 1/1000 =========================
📦 Sampling from replay buffer...
✅ Sampled 64 trajectory groups from buffer (avg age: 0.00 steps)
Got trajectory batch (size: 1024)

📊 Training Results:
  • Loss: 0.0124
  • Generation KL Error: 0.0040
  • Avg Reward: 0.2500
  • Buffer Size: 70
  • Avg Trajectory Age: 1.50 steps

⏱️  Timing:
  • Total step time: 100.00s
  • exposed_generation: 40.00s (40.0%)
  • policy_training: 50.00s (50.0%)
  • weight_sync: 5.00s (5.0%)

🔍 Performance Metrics:
  • Throughputs (per GPU):
    - E2E (Tokens/sec/gpu): 50.00
  • Throughputs (per Group):
    - E2E (Samples/sec): 10.24
    - E2E (Tokens/sec): 400.00
  • Training Model Floating Point Utilization: 31.00%
========================= Step 2/1000 =========================
"""
NEMO_ASYNC_VALUES = {
    "trainer_step_seconds": 100.0, "trainer_wait_seconds": 40.0, "trainer_compute_seconds": 50.0,
    "trainer_weight_sync_seconds": 5.0, "trainer_other_seconds": 5.0, "reward_mean": 0.25, "mismatch_kl_mean": 0.004,
    "loss_mean": 0.0124, "staleness_versions_mean": 1.5, "trainer_samples": 1024.0, "trainer_mfu_ratio busy": 0.31,
    "trainer_tokens_per_second wall": 400.0, "queue_groups": 70.0, "trainer_phase_active wait": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "0: ", "\x1b[36m(main pid=7, ip=10.0.0.1)\x1b[0m "])
def test_an_asynchronous_driver_of_nemo_rl(prefix: str, tmp_path: Path) -> None:
    text = "".join(f"{prefix}{line}\n" for line in NEMO_ASYNC.splitlines())
    name, reading = read(tmp_path / "slurm-7.out", text)
    assert name == "nemo_rl"
    assert values(reading) == pytest.approx(NEMO_ASYNC_VALUES)
    assert reading.facts["mode"] == "async" and {sample.step for sample in reading.samples} == {None, 1}


def test_a_driver_of_nemo_rl_that_starves(tmp_path: Path) -> None:
    """Hours before the first step: the wait is visible, and each printed line counts for one second."""
    path, count = tmp_path / "ray-driver.log", 1_200
    lines = [f"  Wait iteration {number}: buffer_size=0, step 0 ready=False\n" for number in range(count)]
    name, reading = read(path, "".join(lines), at("12:00:00"))
    assert name == "nemo_rl"
    assert values(reading) == {"trainer_phase_active wait": 1.0, "queue_groups": 0.0}
    times = [sample.ts or 0 for sample in reading.samples]
    assert max(times) == pytest.approx(at("12:00:00"), abs=1) and min(times) == pytest.approx(at("11:40:00"), abs=12)
    old = "  Wait iteration 3: buffer_filled_ratio=5/64\n"
    assert values(read(path, old)[1]) == {"trainer_phase_active wait": 1.0, "queue_groups": 5.0}
    assert values(read(path, old.replace("5/64", "64/64"))[1]) == {
        "trainer_phase_active wait": 0.0,
        "queue_groups": 64.0,
    }


def _block(step: str, results: str, more: str = "") -> str:
    head, timing = f"{'=' * 25} Step {step} {'=' * 25}\n{more}", "Timing:\n  • Total step time: 10.00s\n"
    return f"{head}📊 Training Results:\n{results}\n{timing}  • policy_and_reference_logprobs: 1.00s (10.0%)\n\nend\n"


def test_dynamic_sampling_epochs_and_updates_of_nemo_rl(tmp_path: Path) -> None:
    config = (
        "Final config:\n{'cluster': {'gpus_per_node': 8, 'num_nodes': 1},\n"
        " 'grpo': {'num_generations_per_prompt': 16,\n          'num_prompts_per_step': 32},\n"
        " 'policy': {'train_global_batch_size': 128}}\n"
    )
    results = "  • Generation KL Error: 0.0080\n  • Avg Filtered Reward: 0.4000\n  • Avg Total Reward: 0.3000\n"
    batch = "▶ Generating responses for batch of size 512...\n"
    text = (
        config + f"{'=' * 25} Epoch 1/2 {'=' * 25}\n"
        + _block("1/2", results, batch) + _block("2/2", results, batch * 2)
        + f"{'=' * 25} Epoch 2/2 {'=' * 25}\n" + _block("1/2", results, batch)
    )  # fmt: skip
    reading = read(tmp_path / "run.log", text)[1]
    last = values(reading)
    # 512 rollouts in batches of 128: four updates, whose KL errors are added up.
    assert last["mismatch_kl_mean"] == pytest.approx(0.002) and last["reward_mean"] == 0.3
    assert reading.facts["group_size"] == 16.0
    steps = [sample.step for sample in reading.samples if sample.metric == "trainer_step_seconds"]
    assert steps == [1, 2, 3]
    # Two batches were generated for step 2, so the number that it trained on is unknown.
    assert [sample.step for sample in reading.samples if sample.metric == "trainer_samples"] == [1, 3]


def test_other_loops_of_nemo_rl_are_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "sft.log"
    path.write_text(_block("1/10", "  • Loss: 0.5\n").replace("policy_and_reference_logprobs", "policy_training"))
    found = [one.name for one in collectors.load().values() if one.matches_path is not None and one.matches_path(path)]
    assert found == []


def test_a_better_log_of_nemo_rl_replaces_the_printed_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(INPUTS.parent / "nemo_rl" / "async", run)
    (run / "ray-driver.log").write_text(NEMO_ASYNC)
    tail = collectors.load()["nemo_rl"].tail
    assert tail is not None
    assert "ray-driver.log" not in tail(run, {}, Limits(), at("12:00:00")).reader


def test_the_log_of_a_vllm_server(tmp_path: Path) -> None:
    run = tmp_path / "server"
    shutil.copytree(INPUTS / "06c-vllm-server-log", run)
    os.utime(run / "server.log", (at("09:48:41"), at("09:48:41")))
    with watching([run / "server.log"], at("09:48:41")) as product:
        product.step(5)
        assert product.value('generator_requests_now{state="running"}') == 199
        assert product.value('generator_requests_now{state="waiting"}') == 42
        # The other signals are means since 09:46:50: eleven values of 10 s each, then the last one for 5 s.
        steps = (10 * sum(range(11)) + 5 * 11) / 115
        assert product.value('generator_requests{state="running"}') == pytest.approx(188 + steps)
        assert product.value('generator_requests{state="waiting"}') == pytest.approx(31 + steps)
        assert product.value("kv_cache_usage_ratio") == pytest.approx(0.81 + 0.005 * steps)
        assert product.value("generator_tokens_per_second") == pytest.approx(4956.2 + 10 * steps)
        assert product.value("prefix_cache_hit_ratio") == pytest.approx(0.441)
        assert product.value("generator_prompt_tokens_per_second") == pytest.approx((311.5 + 321.5) / 2)
        assert product.value('generator_engines{state="up"}') == 1
    name, reading = read(tmp_path / "a.out", (run / "server.log").read_text(), at("09:48:41"))
    assert name == "vllm_log"
    last = values(reading)
    # 311.5 to 321.5 tokens/s, each for 10 s.
    assert last.pop("generator_prompt_tokens_total 0") == pytest.approx(10 * 11 * (311.5 + 321.5) / 2)
    assert last == pytest.approx({
        "generator_requests_running 0": 199.0, "generator_requests_waiting 0": 42.0, "kv_cache_usage_ratio 0": 0.865,
        "prefix_cache_hit_ratio 0": 0.441, "generator_token_throughput 0": 5066.2,
    })  # fmt: skip
    assert max(sample.ts or 0 for sample in reading.samples) == at("09:48:40")


STATS = (
    "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.5 tokens/s, Running: 4 reqs, Waiting: 2 reqs, "
    "GPU KV cache usage: 1.5%, Prefix cache hit rate: 50.0%"
)
V0 = (
    "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.5 tokens/s, Running: 4 reqs, Swapped: 1 reqs, "
    "Pending: 1 reqs, GPU KV cache usage: 1.5%, CPU KV cache usage: 0.0%."
)
OF_STATS = {
    "generator_requests_running": 4.0, "generator_requests_waiting": 2.0, "generator_token_throughput": 20.5,
    "kv_cache_usage_ratio": 0.015, "prefix_cache_hit_ratio": 0.5, "generator_prompt_tokens_total": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        (f"INFO 11-25 10:00:00 [loggers.py:122] Engine 001: {STATS}", " 1"),
        (f"(APIServer pid=4177) INFO 11-25 10:00:00 [loggers.py:335] Engine 000: {STATS}", " 0"),
        (f"\x1b[1;36m(ApiServer_0 pid=4)\x1b[0;0m INFO 11-25 10:00:00 [loggers.py:223] Engine 012: {STATS}", " 12"),
        (f"INFO 2026-11-25 10:00:00 [loggers.py:116] Engine 000: {STATS}", " 0"),
        (f"10:00:00    INFO Engine 000: {STATS}", " 0"),
        (f"2026-11-25 10:00:00,123 - vllm.engine.metrics - INFO - {STATS}", ""),
        (f"INFO 11-25 10:00:00 metrics.py:455] {V0}", ""),
    ],
)
def test_forms_of_the_engines_line(line: str, engine: str, tmp_path: Path) -> None:
    name, reading = read(tmp_path / "inference.log", f"noise\n{line}\n", at("10:00:03"))
    assert name == "vllm_log"
    expected = {f"{metric}{engine}": value for metric, value in OF_STATS.items()}
    if line.endswith(V0):
        del expected[f"prefix_cache_hit_ratio{engine}"]
    assert values(reading) == pytest.approx(expected)
    assert {sample.ts for sample in reading.samples} == {at("10:00:00")}


def test_several_api_servers_and_engines(tmp_path: Path) -> None:
    """Each API server prints its part; the parts of one engine are added up, and those that end are left out."""
    text = "".join(
        f"(APIServer_{pid} pid={pid}) INFO 11-25 10:00:{second:02} [loggers.py:1] Engine 00{engine}: {STATS}\n"
        for second in (0, 10, 20)
        for pid in ((1, 2) if second < 10 else (1,))
        for engine in (0, 1)
    )
    path = tmp_path / "serve.log"
    _, reading = read(path, text, at("10:00:20"))
    running = {(sample.labels, sample.ts): sample.value for sample in reading.samples if "running" in sample.metric}
    for engine in ("0", "1"):
        assert running[(("engine", engine),), at("10:00:00")] == 8.0
        assert running[(("engine", engine),), at("10:00:20")] == 8.0
    tail = collectors.load()["vllm_log"].tail
    assert tail is not None
    with path.open("a") as file:
        file.write(f"(APIServer_1 pid=1) INFO 11-25 10:00:30 [loggers.py:1] Engine 000: {STATS}\n")
    more = values(tail(path, reading.cursor or {}, Limits(), at("10:00:31")))
    # The second API server has been silent for three intervals.
    assert more["generator_requests_running 0"] == 4.0 and "generator_requests_running 1" not in more
    assert more["generator_prompt_tokens_total 0"] == 300.0


def test_an_idle_engine_and_one_that_died(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    zeros = STATS.replace("10.0", "0.0").replace("20.5", "0.0").replace("4 reqs", "0 reqs").replace("2 reqs", "0 reqs")
    _, first = read(path, f"INFO 11-25 10:00:00 [l] Engine 000: {STATS}\nINFO 11-25 10:00:10 [l] Engine 000: {zeros}\n")
    tail = collectors.load()["vllm_log"].tail
    assert tail is not None
    os.utime(path, (at("10:00:10"), at("10:00:10")))
    first = tail(path, {}, Limits(), at("10:00:11"))
    idle = tail(path, first.cursor or {}, Limits(), at("10:05:00"))
    assert {sample.ts for sample in idle.samples} == {at("10:05:00")} and set(values(idle).values()) == {0.0}
    assert tail(path, idle.cursor or {}, Limits(), at("10:30:00")).samples == ()
    # After an abort the last line still has requests: nothing is known after it.
    stuck = zeros.replace("Running: 0", "Running: 7")
    path.write_text(f"INFO 11-25 10:00:10 [l] Engine 000: {stuck}\n")
    os.utime(path, (at("10:00:10"), at("10:00:10")))
    first = tail(path, {}, Limits(), at("10:00:11"))
    assert values(first)["generator_requests_running 0"] == 7.0
    assert tail(path, first.cursor or {}, Limits(), at("10:05:00")).samples == ()


def test_engines_inside_a_trainers_log_are_left_to_their_pages(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"(vLLMHttpServer pid=7, ip=10.0.0.1) INFO 11-25 10:00:00 [loggers.py:1] Engine 000: {STATS}\n")
    assert collectors.load()["vllm_log"].matches_path(path) is None  # type: ignore[misc]
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "inference.log").write_text(f"INFO 11-25 10:00:00 [loggers.py:1] Engine 000: {STATS}\n")
    assert collectors.load()["vllm_log"].matches_path(run) is None  # type: ignore[misc]


def test_the_logs_of_two_servers_in_one_folder(tmp_path: Path) -> None:
    for name in ("node_0", "node_1"):
        (tmp_path / f"{name}.log").write_text(f"INFO 11-25 10:00:00 [loggers.py:1] Engine 000: {STATS}\n")
        os.utime(tmp_path / f"{name}.log", (at("10:00:01"), at("10:00:01")))
    tail = collectors.load()["vllm_log"].tail
    assert tail is not None
    reading = tail(tmp_path, {}, Limits(), at("10:00:02"))
    assert {sample.labels for sample in reading.samples} == {
        (("engine", "0"), ("replica", "node_0")), (("engine", "0"), ("replica", "node_1"))
    }  # fmt: skip


LABELS = {
    "torchrun": "[default0]:",
    "srun": "0: ",
    "srun of more than ten tasks": " 0: ",
    "kubectl": "2026-11-25T10:00:00.123456789Z ",
    "container log": "2026-11-25T10:00:00.123456789+00:00 stdout F ",
    "Ray": "\x1b[36m(Trainer pid=4177, ip=10.0.0.3)\x1b[0m ",
}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize("file", ["train.log", "slurm-7.err", "stdout"])
def test_the_dicts_of_trl_behind_a_label(label: str, file: str, tmp_path: Path) -> None:
    log = (INPUTS / "06d-trl-printed-dicts" / "train.log").read_text()
    (tmp_path / file).write_text("".join(f"{label}{line}\n" for line in log.splitlines()))
    trl = collectors.load()["trl"]
    assert trl.matches_path is not None and trl.matches_path(tmp_path) and trl.tail is not None
    reading = trl.tail(tmp_path, {}, Limits(), at("10:00:00"))
    rewards = {sample.step: sample.value for sample in reading.samples if sample.metric == "reward_mean"}
    assert len(rewards) == 30 and (rewards[1], rewards[30]) == (0.21, 0.5)


def test_the_time_of_a_container_has_a_zone(tmp_path: Path) -> None:
    """The line's own time is that of the container's zone, which no one knows."""
    utc = calendar.timegm((2026, 11, 25, 10, 0, 0)) + 0.25
    line = f"2026-11-25T10:00:00.250000000Z INFO 11-25 02:00:00 [loggers.py:122] Engine 001: {STATS}"
    assert {sample.ts for sample in read(tmp_path / "a.log", f"{line}\n", utc)[1].samples} == {utc}
    row = "{'loss': 0.1, 'reward': 0.5, 'reward_std': 0.1, 'frac_reward_zero_std': 0.25, 'step_time': 20.0}"
    name, reading = read(tmp_path / "b.log", f"2026-11-25T10:00:00.250000000Z {row}\n", utc + 5)
    assert name == "trl" and {sample.ts for sample in reading.samples if sample.step == 1} == {utc}


NAMES = ["slurm-12.out", "job.err", "run.o4177", "stdout"]


@pytest.mark.parametrize("name", [*NAMES, "train.log.1", "output"])
@pytest.mark.parametrize(
    ("log", "framework"),
    [
        ("06a-prime-rl-orchestrator-log/logs/orchestrator.log", "prime_rl"),
        ("06d-trl-printed-dicts/train.log", "trl"),
        ("06f-nemo-rl-driver-log/ray-driver.log", "nemo_rl"),
        ("06g-ms-swift-megatron-text/swift.log", "ms_swift"),
        ("07-nccl-watchdog/job.log", "verl"),
    ],
)
def test_a_log_with_another_name(log: str, framework: str, name: str, tmp_path: Path) -> None:
    """Names of batch systems are found in a folder, too; other files must be given by name."""
    shutil.copyfile(INPUTS / log, tmp_path / name)
    for path in (tmp_path / name, tmp_path) if name in NAMES else (tmp_path / name,):
        found = [one for one in collectors.load().values() if one.matches_path is not None and one.matches_path(path)]
        assert [one.name for one in found] == [framework]
        assert found[0].tail is not None
        reading = found[0].tail(path, {}, Limits(), path.stat().st_mtime)
        assert len({sample.step for sample in reading.samples if sample.metric == "trainer_step_seconds"}) >= 10


def test_a_compressed_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(b"{'loss': 0.1}"))
    for path in (tmp_path, tmp_path / "train.log.gz"):
        with (
            pytest.raises(ConfigError, match=r"train\.log\.gz: it is compressed; unpack it first"),
            watching([path], 0),
        ):
            pass
