"""SkyRL: an asynchronous run in TensorBoard, a synchronous one on the console, the gauges of a Ray agent."""

import asyncio
import json
import pprint
from pathlib import Path

import httpx
import pytest

from collectors.formats import console
from collectors.model import Limits, ScrapeError
from collectors.trainers import skyrl
from tests.collectors._frameworks import collected, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA, page_json
from tests.support_writers import run_writer

DATA = TESTDATA / "skyrl"
EVENTS = next((DATA / "async").iterdir())
COLLECTOR = skyrl.COLLECTOR

SYNC = {
    "reward/avg_pass_at_8": 0.5,
    "reward/avg_raw_reward": 0.25,
    "reward/num_zero_variance_filtered": 24,
    "generate/batch_num_seq": 512,
    "generate/avg_num_tokens": 700.0,
    "generate/max_num_tokens": 1024,
    "policy/grad_norm": 0.125,
    "trainer/global_step": 1,
    "trainer/tokens_per_second_per_gpu": 1000.0,
    "timing/generate": 60.0,
    "timing/fwd_logprobs_values_reward": 8.0,
    "timing/compute_advantages_and_returns": 1.0,
    "timing/train_critic_and_policy": 20.0,
    "timing/policy_train": 19.0,
    "timing/sync_weights": 4.0,
    "timing/save_checkpoints": 5.0,
    "timing/step": 100.0,
}


def printed(step: int, row: dict[str, object], indent: str = "") -> str:
    """As ConsoleLogger prints a step (train/utils/tracking.py): floats as texts of four decimals."""
    texts = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()}
    block = f"2026-08-21 10:{step:02d}:00.125 | INFO     | skyrl.train.utils.tracking:log:190 - Step {step}: \n"
    return "".join(f"{indent}{line}\n" for line in (block + pprint.pformat(texts)).splitlines())


def test_an_asynchronous_step_in_numbers() -> None:
    reading = tail(COLLECTOR, DATA / "async")
    assert values(reading, 3) == {
        "trainer_step_seconds": 96.0,
        "trainer_wait_seconds": 40.0,
        "trainer_compute_seconds": 48.0,
        "trainer_weight_sync_seconds": 5.0,
        "trainer_other_seconds": 3.0,
        "trainer_logprob_seconds": 10.0,
        "batch_pack_seconds": 2.0,
        "queue_samples": 16.0,
        "staleness_versions_mean": 1.5,
        "staleness_versions_max": 3.0,
        "stale_dropped_rollouts": 0.0,
        "groups_zero_advantage_ratio": 0.25,
        "filtered_groups": 4.0,
        "trainable_ratio": 0.75,
        "trainer_samples": 48.0,
        "reward_mean": 0.375,
        "response_tokens_mean": 256.0,
        "response_tokens_max": 900.0,
        "response_tokens_min": 16.0,
        "rollout_seconds_mean": 30.0,
        "rollout_seconds_max": 80.0,
        "rollout_model_seconds_mean": 24.0,
        "rollout_harness_seconds_mean": 5.5,
        "rollout_tokens_per_second": 2048.0,
        "loss_mean": -0.125,
        "entropy_mean": 0.625,
        "learning_rate": pytest.approx(1e-6),
        "gradient_norm": 0.5,
        "gradient_nonfinite": 0.0,
        "clip_ratio": 0.03125,
        "mismatch_logprob_difference_mean": 0.015625,
        "mismatch_logprob_difference_max": 2.0,
    }
    assert reading.facts == {"framework": "skyrl", "mode": "async", "group_size": 4.0}
    assert reading.unmapped == {}


def test_evaluation_and_checkpoints_are_outside_of_the_asynchronous_step() -> None:
    reading = tail(COLLECTOR, DATA / "async")
    tenth = values(reading, 10)
    assert tenth["trainer_step_seconds"] == 96 + 30 + 20
    assert (tenth["trainer_eval_seconds"], tenth["trainer_checkpoint_seconds"]) == (30, 20)
    assert tenth["trainer_other_seconds"] == 3 + 30
    # The evaluation before training is in the first step's timer and not in the step.
    assert values(reading, 1)["trainer_step_seconds"] == 96
    assert values(reading, 0) == {}


def test_a_gradient_that_is_no_number_is_told() -> None:
    seventh = values(tail(COLLECTOR, DATA / "async"), 7)
    assert seventh["gradient_nonfinite"] == 1
    assert "gradient_norm" not in seventh


def test_the_two_rows_of_a_step_stay_one(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, DATA / "async")])
    assert collected(in_parts(COLLECTOR, DATA / "async", 1)) == whole
    grown = live(COLLECTOR, EVENTS, tmp_path / EVENTS.name, 1499)
    assert len(grown) > 20
    assert collected(grown) == whole
    times = {sample.step: sample.ts for reading in grown for sample in reading.samples}
    assert times[4] == 1_795_250_400.0


def test_a_synchronous_step_from_the_console(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Started: 'step'\n" + printed(1, SYNC, indent="(skyrl_entrypoint pid=77) "))
    reading = tail(COLLECTOR, log)
    assert values(reading, 1) == {
        "trainer_step_seconds": 100.0,
        "generation_seconds": 60.0,
        "trainer_compute_seconds": 29.0,
        "trainer_weight_sync_seconds": 4.0,
        "trainer_checkpoint_seconds": 5.0,
        "trainer_other_seconds": 2.0,
        "trainer_logprob_seconds": 8.0,
        "reward_mean": 0.25,
        "filtered_groups": 24.0,
        "trainer_samples": 512.0,
        "response_tokens_mean": 700.0,
        "response_tokens_max": 1024.0,
        "gradient_norm": 0.125,
        "gradient_nonfinite": 0.0,
    }
    assert reading.facts["usual_mode"] == "sync_colocated"
    assert "times_estimated" not in reading.facts


WRITER = """
import json, sys
kind, folder, rows, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
if kind == "wandb":
    import wandb
    wandb.init(project="p", name="e", config=config, mode="offline", dir=folder)
    for step, data, commit in rows:
        wandb.log(data=data, step=step, commit=commit)
    wandb.finish(exit_code=0)
else:
    import mlflow
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("p")
    mlflow.start_run(run_name="e")
    mlflow.log_params(config)
    for step, data, _ in rows:
        mlflow.log_metrics(metrics={k.replace("@", "_at_"): v for k, v in data.items()}, step=step)
    mlflow.end_run()
"""
METRICS = {
    "async/num_groups_dropped": 16.0,
    "async/staleness_mean": 0.5,
    "async/gen_buffer_qsize_at_wait_start": 3.0,
    "reward/avg_pass_at_8": 0.5,
    "reward/avg_raw_reward": 0.25,
    "policy/policy_entropy": 0.75,
}
TIMES = {
    "timing/wait_for_generation_buffer": 10.0,
    "timing/run_training": 20.0,
    "timing/sync_weights": 2.0,
    "timing/step": 33.0,
}


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_the_same_from_wandb_and_mlflow_with_their_configuration(tmp_path: Path, kind: str) -> None:
    """Written by the real writers as Tracking calls them: metrics without a commit, then times with one."""
    rows = [(step, part, part is TIMES) for step in (1, 2, 3) for part in (METRICS, TIMES)]
    asynchronous = {**CONFIG["trainer"], "fully_async": {"enabled": True, "max_staleness_steps": 4}}
    config = {**CONFIG, "trainer": asynchronous} if kind == "wandb" else FLAT | {"trainer/fully_async/enabled": "True"}
    run_writer(WRITER, kind, tmp_path, json.dumps(rows), json.dumps(config))
    reading = tail(COLLECTOR, tmp_path)
    assert {sample.step for sample in reading.samples} == {1, 2, 3}
    assert values(reading, 2) == {
        "trainer_step_seconds": 33.0,
        "trainer_wait_seconds": 10.0,
        "trainer_compute_seconds": 20.0,
        "trainer_weight_sync_seconds": 2.0,
        "trainer_other_seconds": 1.0,
        "queue_samples": 24.0,
        "filtered_groups": 16.0,
        "groups_zero_advantage_ratio": 0.2,  # 16 thrown away while 64 were kept
        "trainable_ratio": 0.8,
        "staleness_versions_mean": 0.5,
        "stale_dropped_rollouts": 0.0,
        "reward_mean": 0.25,
        "entropy_mean": 0.75,
    }
    assert (reading.facts["mode"], reading.facts["batch_samples"], reading.facts["lifecycle"]) == (
        "async",
        512,
        "finished",
    )


def test_a_block_that_is_not_closed_yet_waits(tmp_path: Path) -> None:
    source, log = tmp_path / "all.txt", tmp_path / "train.log"
    source.write_text("".join(printed(step, SYNC) for step in range(1, 6)))
    whole = collected([tail(COLLECTOR, source)])
    assert {step for _, step, _ in whole} == {1, 2, 3, 4, 5}
    assert collected(live(COLLECTOR, source, log, 131)) == whole


def test_a_run_that_is_resumed_steps_back(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(printed(step, SYNC) for step in (1, 2, 3)))
    first = tail(COLLECTOR, log)
    with log.open("a") as file:
        file.write(printed(2, {**SYNC, "timing/step": 90.0}))
    second = tail(COLLECTOR, log, first.cursor)
    assert {sample.step for sample in second.samples} == {2}
    assert values(second, 2)["trainer_step_seconds"] == 90
    assert min(s.ts for s in second.samples if s.ts is not None) > 0


def test_a_log_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(printed(step, SYNC) for step in (1, 2, 3)))
    first = tail(COLLECTOR, log)
    log.write_text(printed(1, {**SYNC, "timing/step": 80.0}))
    assert values(tail(COLLECTOR, log, first.cursor), 1)["trainer_step_seconds"] == 80


CONFIG = {
    "trainer": {
        "train_batch_size": 64,
        "max_training_steps": 200,
        "placement": {"colocate_all": False, "policy_num_nodes": 2, "policy_num_gpus_per_node": 8},
        "fully_async": {"enabled": False, "max_staleness_steps": 4},
        "policy": {"model": {"path": "Qwen/Qwen3-8B"}},
    },
    "generator": {"n_samples_per_prompt": 8, "sampling_params": {"max_generate_length": 1024}},
}
FLAT = {
    "trainer/train_batch_size": "64",
    "trainer/max_training_steps": "200",
    "trainer/placement/colocate_all": "False",
    "trainer/placement/policy_num_nodes": "2",
    "trainer/placement/policy_num_gpus_per_node": "8",
    "trainer/fully_async/enabled": "False",
    "trainer/fully_async/max_staleness_steps": "4",
    "trainer/policy/model/path": "Qwen/Qwen3-8B",
    "generator/n_samples_per_prompt": "8",
    "generator/sampling_params/max_generate_length": "1024",
}
EXPECTED_FACTS = {
    "mode": "sync_split",
    "group_size": 8.0,
    "batch_samples": 512.0,
    "max_steps": 200.0,
    "max_response_tokens": 1024.0,
    "trainer_gpus": 16.0,
    "model": "Qwen/Qwen3-8B",
}


def test_facts_of_the_configuration() -> None:
    assert skyrl.facts(CONFIG) == EXPECTED_FACTS
    # MLflow: slashes, and every value a text.
    assert skyrl.facts(FLAT) == EXPECTED_FACTS
    asynchronous = {**CONFIG["trainer"], "fully_async": {"enabled": True, "max_staleness_steps": 4}}
    found = skyrl.facts({**CONFIG, "trainer": asynchronous})
    assert (found["mode"], found["max_staleness_versions"]) == ("async", 4)


def derived(row: dict[str, float], **facts: float) -> dict[str, float]:
    context = skyrl_context(**facts)
    piece = skyrl.Piece("trainer", 1, 0.0, row)
    return {metric: value for metric, labels, value in skyrl.derive(piece, context) if not labels}


def skyrl_context(**facts: float) -> skyrl.Context:
    return skyrl.Context({"mode": "async", **facts}, {}, "wandb")


def test_groups_without_advantage_need_the_number_of_groups() -> None:
    row = {"reward/num_zero_variance_filtered": 24.0}
    assert "groups_zero_advantage_ratio" not in derived(row)
    assert derived(row, batch_samples=512.0, group_size=8.0)["groups_zero_advantage_ratio"] == 24 / 64
    # 0.3.0 logs how many were dropped while 64 were kept, and no rate.
    old = derived({"async/num_groups_dropped": 16.0}, batch_samples=512.0, group_size=8.0)
    assert old["groups_zero_advantage_ratio"] == 0.2
    assert old["trainable_ratio"] == 0.8


def test_the_page_of_a_ray_agent() -> None:
    reading = COLLECTOR.parse((DATA / "gauges_wait.prom").read_bytes(), {}, Limits())
    assert page_json(reading) == {
        "samples": {
            "queue_groups": 5.0,
            "queue_capacity_groups": 9.0,
            'trainer_phase_active{phase="wait"}': 1.0,
            'trainer_phase_active{phase="other"}': 0.0,
            'trainer_phase_active{phase="compute"}': 0.0,
            'trainer_phase_active{phase="weight_sync"}': 0.0,
            'trainer_phase_active{phase="eval"}': 0.0,
            'trainer_phase_active{phase="checkpoint"}': 0.0,
        },
        "histograms": {},
        "unmapped": {},
        "samples_scraped": 11,
    }


def test_the_phase_of_another_moment() -> None:
    found = page_json(COLLECTOR.parse((DATA / "gauges_sync.prom").read_bytes(), {}, Limits()))["samples"]
    assert found['trainer_phase_active{phase="weight_sync"}'] == 1
    assert found["queue_capacity_groups"] == 20
    # Ray leaves out what was not reported anew: that phase is not known to be over.
    assert 'trainer_phase_active{phase="eval"}' not in found


def test_two_phases_of_theirs_are_one_of_ours() -> None:
    body = (DATA / "gauges_wait.prom").read_bytes()
    lines = [line for line in body.splitlines(keepends=True) if b'phase="save_' not in line]
    saves = [b'ray_skyrl_training_phase{phase="save_%s"} %d\n' % one for one in ((b"checkpoints", 1), (b"hf_model", 0))]
    found = page_json(COLLECTOR.parse(b"".join(lines + saves), {}, Limits()))["samples"]
    assert found['trainer_phase_active{phase="checkpoint"}'] == 1


def test_a_page_without_the_gauges_says_nothing() -> None:
    """Ray shows a gauge in every second page only: what is missing is not zero."""
    body = (DATA / "without_gauges.txt").read_bytes()
    assert b"skyrl" not in body and not skyrl.matches(body)
    reading = COLLECTOR.parse(body, {}, Limits())
    assert (reading.samples, reading.facts) == ((), {})


def test_a_page_of_somebody_else_is_refused() -> None:
    with pytest.raises(ScrapeError, match="not a page of a Ray metrics agent"):
        COLLECTOR.parse(b"up 1\n", {}, Limits())


async def _polled(base: str) -> list[str]:
    asked = []

    async def app(scope, receive, send) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": (DATA / "gauges_wait.prom").read_bytes()})

    async with httpx.AsyncClient(base_url=base, transport=httpx.ASGITransport(app)) as client:
        assert (await COLLECTOR.poll(client, {"options": {}}, Limits())).samples
    return asked


@pytest.mark.parametrize("base", ["http://node:8080", "http://node:8080/metrics"])
def test_it_asks_for_the_page_alone(base: str) -> None:
    assert asyncio.run(_polled(base)) == ["/metrics"]


def test_what_the_console_says_besides() -> None:
    memory: dict[str, object] = {}
    assert skyrl.parse_line(console.ConsoleLine("Started: 'generate'"), memory) is None
    assert skyrl.parse_line(console.ConsoleLine("{'a': 1}"), memory) is None
    assert skyrl.parse_line(console.ConsoleLine("x - Step 3: "), memory) is None
    assert skyrl.parse_line(console.ConsoleLine("{broken"), memory) is not None  # a step whose numbers are lost
