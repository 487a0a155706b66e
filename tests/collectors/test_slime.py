"""slime runs: recorded halves of a rollout, a fully asynchronous run's console, and the traps of its counters."""

import json
from pathlib import Path
from typing import Any

import pytest

from collectors.formats.rows import Logged
from collectors.trainers import miles, slime
from collectors.trainers.slime import facts, from_command
from collectors.training_logs.model import Context
from collectors.training_logs.tail import finite
from tests.collectors._frameworks import counts, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA
from tests.collectors._slime import THREE
from tests.support_writers import run_writer

RUNS = TESTDATA / "slime"
COLLECTOR = slime.COLLECTOR
ARGUMENTS = {
    "colocate": True, "rollout_batch_size": 16, "n_samples_per_prompt": 8, "num_rollout": 4,
    "actor_num_nodes": 1, "actor_num_gpus_per_node": 8, "rollout_num_gpus": 8, "hf_checkpoint": "/root/Qwen3-4B",
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout", "rollout_max_response_len": 8192,
}  # fmt: skip
GENERATED = {"rollout/response_len/mean": 100.0, "perf/rollout_time": 40.0}
TRAINED = {
    "perf/train_wait_time": 47.0,
    "perf/train_time": 20.0,
    "perf/step_time": 67.0,
    "perf/update_weights_time": 5.0,
}


def console(folder: Path, *messages: str) -> Path:
    text = "".join(f"(A pid=1) [2026-11-21 08:00:{n:02}] a.py:1 - {said}\n" for n, said in enumerate(messages))
    (folder / "train.log").write_text(text)
    return folder


def rollout(number: int, **more: float) -> str:
    return f"perf {number}: {GENERATED | more}"


def step(number: int, norm: float = 1.0) -> str:
    return f"step {number}: { ({'train/grad_norm': norm, 'train/step': number}) }"


def trained(number: int) -> str:
    return f"perf {number}: {TRAINED}"


def test_the_recorded_rollouts() -> None:
    """Rollout 2 by hand, from the recorded lines; without the batch size the equal groups are no share."""
    reading = tail(COLLECTOR, RUNS / "sync_console")
    assert values(reading, 2) == {
        "response_tokens_mean": 401.84375,
        "response_tokens_max": 1317,
        "response_tokens_min": 106,
        "truncation_ratio": 0,
        "generation_seconds": 39.818105439082295,
        "rollout_harness_seconds_mean": 1.5331656527859185,
        "loss_mean": -0.7467818840498868,
        "clip_ratio": 0.011657641944234466,
        "gradient_norm": 0.4590109190103751,
        "gradient_nonfinite": 0,
    }
    assert (reading.facts["usual_mode"], reading.unmapped) == ("sync_colocated", {})


def test_bytes_of_an_update_by_deltas_on_disk(tmp_path: Path) -> None:
    sent = f"perf 0: {TRAINED | {'perf/update_weights_wire_bytes': 123.0}}"
    reading = tail(COLLECTOR, console(tmp_path, rollout(0), step(0), sent, rollout(1), step(1)))
    assert values(reading, 0)["weight_sync_bytes"] == 123


def test_both_sinks_tell_the_same() -> None:
    board, text = tail(COLLECTOR, RUNS / "sync"), tail(COLLECTOR, RUNS / "sync_console")
    for number in range(16):
        assert values(board, number) == pytest.approx(values(text, number), rel=1e-6, abs=1e-9)
    assert sorted(counts([board], "gradient_norm")) == list(range(40))
    assert set(counts([board], "generation_seconds").values()) == {1}


def test_a_fully_asynchronous_rollout() -> None:
    """Rollout 3: two halves and two optimizer steps. Of the 30 s of `train_wait` 5 were weights, 6 saving, 1 data."""
    reading = tail(COLLECTOR, RUNS / "async")
    more = {"rollout_tokens_per_second": 100 * 16, "groups_zero_advantage_ratio": 0, "filtered_groups": 0}
    assert values(reading, 3) == pytest.approx(THREE | more)
    expected = {
        "framework": "slime", "mode": "async", "group_size": 8, "batch_samples": 128, "max_steps": 100,
        "max_response_tokens": 1024, "trainer_gpus": 8, "generator_gpus": 16, "model": "Qwen3-4B",
    }  # fmt: skip
    assert reading.facts == expected
    assert [event.detail for event in reading.events] == ["rollout 5"]
    assert reading.unmapped == {}


def test_equal_groups_count_those_a_filter_replaced() -> None:
    """Keys are left out when there is none: unknown before the first, none after it."""
    reading = tail(COLLECTOR, RUNS / "async")
    ratios = [values(reading, number).get("groups_zero_advantage_ratio") for number in range(5)]
    assert ratios == [None, 3 / 16, (3 + 4) / (16 + 4), 0, 3 / 16]
    assert [values(reading, number).get("filtered_groups") for number in range(4)] == [None, None, 4, 0]


def test_one_bad_gradient_of_two_is_one_too_many() -> None:
    reading = tail(COLLECTOR, RUNS / "async")
    assert [values(reading, number)["gradient_nonfinite"] for number in (3, 4, 5)] == [0, 1, 0]
    assert values(reading, 4)["gradient_norm"] == 0.5  # the other one


def test_queue_and_suspended_rollouts_are_gauges_of_the_moment() -> None:
    """What a rollout has collected is ready like what waits: 12 + 2 groups of 8."""
    reading = tail(COLLECTOR, RUNS / "async")
    queue = [sample.value for sample in reading.samples if sample.metric == "queue_samples"]
    assert queue[:3] == [3 * 8, (12 + 2) * 8, 4 * 8]
    suspended = [(s.labels, s.value) for s in reading.samples if s.metric == "in_flight_rollouts"]
    assert suspended == [((("state", "suspended"),), 24)]


def test_without_the_groups_size_the_queue_is_groups(tmp_path: Path) -> None:
    said = "fully-async rollout 7: collected 12/64, queue=5, elapsed=30.1s"
    reading = tail(COLLECTOR, console(tmp_path, rollout(7), said))
    assert [(s.metric, s.value) for s in reading.samples if s.step is None] == [("queue_groups", 17)]


def test_phases_as_they_change(tmp_path: Path) -> None:
    """`train_wait` goes on while weights are sent: then the trainer does not wait."""
    said = ("Timer train_wait start", "Timer update_weights start", "Timer update_weights end (elapsed: 5.0s)")
    reading = tail(COLLECTOR, console(tmp_path, rollout(0), *said, "Timer log_probs start"))
    phases = [(s.ts, dict(s.labels)["phase"], s.value) for s in reading.samples if s.metric == "trainer_phase_active"]
    start = phases[0][0]
    assert [(ts - start, phase, active) for ts, phase, active in phases] == [
        (0, "wait", 1),
        (1, "wait", 0),
        (1, "weight_sync", 1),
        (2, "wait", 1),
        (2, "weight_sync", 0),
    ]


def test_a_queue_makes_it_asynchronous_without_the_arguments(tmp_path: Path) -> None:
    """The rollout took 10 s, less than the wait: its length alone would say that they take turns."""
    queue = "fully-async rollout 0: target=16 queue_warm=5"
    times = "{'perf/train_time': 40.0, 'perf/train_wait_time': 20.0, 'perf/step_time': 60.0, "
    times += "'perf/update_weights_time': 5.0}"
    said = (queue, rollout(0, **{"perf/rollout_time": 10.0}), step(0), f"perf 0: {times}")
    reading = tail(COLLECTOR, console(tmp_path, *said))
    found = values(reading, 0)
    assert (reading.facts["mode"], found["trainer_wait_seconds"]) == ("async", 20 - 5)
    assert "generation_seconds" not in found


def halves(*rows: tuple[float, float | None]) -> list[Logged]:
    """Two optimizer steps in each rollout; a loss without a norm is the half of a step."""
    logged = []
    for update, (loss, norm) in enumerate(rows):
        more = {"train/grad_norm": norm} if norm is not None else {}
        logged.append(Logged({"train/loss": loss, **more}, update, 100.0 + update))
    return logged


def told(rows: list[Logged], context: Context) -> list[tuple[int, dict[str, float]]]:
    found = [piece for row in rows for piece in slime.pieces(row, finite(slime.FRAMEWORK, row.values), context)]
    return [(piece.step, dict(piece.values)) for piece in found]


@pytest.mark.parametrize("per", [1, 2])
def test_a_read_that_ends_within_an_optimizer_step(per: int) -> None:
    """TensorBoard's scalars come one by one: the rest of a step is no rewind, and the means are over all of them."""
    context = Context({}, {"per": per}, "tensorboard")
    first = told(halves((1.0, 2.0), (3.0, None)), context)
    rest = told([Logged({"train/grad_norm": 6.0}, 1, 101.0)], context)
    norm = {"train/grad_norm": 6.0, slime.NONFINITE: 0.0}
    if per == 1:
        assert first[1:] == [(1, {"train/loss": 3.0})]
        assert rest == [(1, norm)]
    else:
        assert first == [(0, {"train/loss": (1.0 + 3.0) / 2})]
        assert rest == [(0, norm | {"train/grad_norm": (2.0 + 6.0) / 2})]
    assert context.memory["held"] == []


def test_what_the_last_optimizer_step_lacks_comes_with_the_next() -> None:
    context = Context({}, {"per": 2}, "tensorboard")
    found = told(halves((1.0, 2.0), (3.0, None), (5.0, 4.0)), context)
    assert found == [(0, {"train/loss": 2.0}), (0, {"train/grad_norm": 2.0, slime.NONFINITE: 0.0})]


def test_the_halves_of_a_rollout_are_no_rewind() -> None:
    context = Context({}, {}, "tensorboard")
    told([Logged({"train/loss": 1.0}, 0, 100.0), Logged({"rollout/response_len/mean": 9.0}, 1, 101.0)], context)
    told([Logged({"perf/rollout_time": 4.0}, 1, 101.0)], context)
    assert context.memory["last"] == 0
    told([Logged({"perf/rollout_time": 4.0}, 1, 102.0)], context)
    assert context.memory["last"] == -1


def test_optimizer_steps_wait_until_their_rollout_is_known(tmp_path: Path) -> None:
    """Four per rollout: they are held until the trainer has finished one."""
    messages = [rollout(0), *map(step, range(4), (1.0, 2.0, 3.0, 4.0))]
    first = tail(COLLECTOR, console(tmp_path, *messages))
    assert counts([first], "gradient_norm") == {}
    messages += [trained(0), rollout(1), *map(step, range(4, 8), (5.0, 6.0, 7.0, 8.0)), trained(1)]
    second = tail(COLLECTOR, console(tmp_path, *messages), first.cursor)
    assert [values(second, number)["gradient_norm"] for number in (0, 1)] == [2.5, 6.5]
    whole = tail(COLLECTOR, console(tmp_path, *messages))
    assert counts([whole], "gradient_norm") == {0: 1, 1: 1}


def test_without_the_trainers_half_the_numbers_tell(tmp_path: Path) -> None:
    single = [part for number in range(6) for part in (rollout(number), step(number, number + 1.0))]
    reading = tail(COLLECTOR, console(tmp_path, *single))
    assert [values(reading, number)["gradient_norm"] for number in range(6)] == [1, 2, 3, 4, 5, 6]
    times = {(sample.step, sample.ts) for sample in reading.samples}
    assert len(times) == 6 and [number for number, _ in sorted(times, key=lambda one: one[1])] == list(range(6))
    double = [part for n in range(6) for part in (rollout(n), step(2 * n), step(2 * n + 1))]
    assert counts([tail(COLLECTOR, console(tmp_path, *double))], "gradient_norm") == {}


def test_the_rollout_ahead_does_not_claim_the_trainers_half(tmp_path: Path) -> None:
    """train_async.py: rollout 1 is generated while rollout 0 is trained on; the wait is shorter than a rollout."""
    trains = {key: value / 2 for key, value in TRAINED.items()}
    messages = (rollout(0), rollout(1), step(0), f"perf 0: {trains}", rollout(2), step(1), f"perf 1: {trains}")
    reading = tail(COLLECTOR, console(tmp_path, *messages))
    assert "mode" not in reading.facts  # without the arguments it may be fully asynchronous, too
    for number in (0, 1):
        found = values(reading, number)
        assert (found["trainer_step_seconds"], found["gradient_norm"], found["response_tokens_mean"]) == (33.5, 1, 100)
        assert found["trainer_wait_seconds"] == 23.5 - 2.5


def test_taking_turns_the_rollout_is_generation(tmp_path: Path) -> None:
    command = "+ python3 train.py --colocate --rollout-batch-size 32"
    found = values(tail(COLLECTOR, console(tmp_path, command, rollout(0), step(0), trained(0))), 0)
    assert (found["generation_seconds"], found["trainer_other_seconds"]) == (40, 67 - 40 - 20 - 5)
    assert "trainer_wait_seconds" not in found


def test_a_resumed_run_goes_back(tmp_path: Path) -> None:
    lived = [part for number in range(4) for part in (rollout(number), step(number), trained(number))]
    again = [part for number in range(2, 5) for part in (rollout(number), step(number, 9.0), trained(number))]
    first = tail(COLLECTOR, console(tmp_path, *lived))
    second = tail(COLLECTOR, console(tmp_path, *lived, *again), first.cursor)
    assert [values(second, number)["gradient_norm"] for number in (2, 3, 4)] == [9, 9, 9]


def test_live_every_value_comes_once(tmp_path: Path) -> None:
    source = RUNS / "async" / "train.log"
    readings, whole = live(COLLECTOR, source, tmp_path / "train.log"), tail(COLLECTOR, source)
    for number in range(8):
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, number)
        assert found == values(whole, number)
    assert set(counts(readings, "trainer_wait_seconds").values()) == {1}
    told = [(s.metric, s.labels, s.value, s.ts) for r in readings for s in r.samples if s.step is None]
    assert told == [(s.metric, s.labels, s.value, s.ts) for s in whole.samples if s.step is None]


@pytest.mark.parametrize("name", ["sync", "sync_console", "async"])
def test_in_parts_it_is_the_same(name: str) -> None:
    readings, whole = in_parts(COLLECTOR, RUNS / name, 5), tail(COLLECTOR, RUNS / name)
    for number in range(8):
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, number)
        assert found == values(whole, number)


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "sync_colocated"),
        ({"colocate": False}, ""),
        ({"colocate": False, "program": "train.py"}, "sync_split"),
        ({"colocate": False, "update_weights_interval": 2}, "one_step"),
        ({"colocate": False, "program": "train_async.py"}, "one_step"),
        ({"colocate": False, "rollout_function_path": "slime.rollout.fully_async_rollout.generate"}, "async"),
    ],
)
def test_modes(changes: dict[str, Any], mode: str) -> None:
    found = facts(ARGUMENTS | changes)
    assert found.get("mode", "") == mode
    assert found.get("usual_mode", "") == ("" if mode else "one_step")
    assert ("generator_gpus" in found) == (mode != "sync_colocated")


def test_a_command_line_is_arguments() -> None:
    found = from_command("+ python3 train.py --colocate --rollout-batch-size 32 --lr=1e-6 --n-samples-per-prompt 8")
    expected = {"program": "train.py", "colocate": True, "rollout_batch_size": "32", "lr": "1e-6"}
    assert found == expected | {"n_samples_per_prompt": "8"}
    assert facts(found)["batch_samples"] == 256
    assert from_command("python3 train.py --help") is None
    assert from_command("python3 train.py --rollout-batch-size '32") is None


def test_the_fork_is_told_apart(tmp_path: Path) -> None:
    more = {"rollout/zero_std/all_zero_percentage": 0.5, "rollout/zero_std/all_one_percentage": 0.0}
    console(tmp_path, rollout(0, **more))
    assert COLLECTOR.matches_path(tmp_path) is None
    assert miles.COLLECTOR.matches_path(tmp_path)
    assert miles.COLLECTOR.matches_path(RUNS / "async") is None


WRITER = """
import json, sys, wandb
config, calls = json.loads(sys.argv[2]), json.loads(sys.argv[3])
run = wandb.init(project="p", name="exp", config=config, dir=sys.argv[1], mode="offline")
for metrics in calls:
    wandb.log(metrics)
run.finish()
"""


def test_wandbs_counter_is_none_of_the_three(tmp_path: Path) -> None:
    """Five calls per rollout; `rollout/step` and `train/step` are logged beside the values."""
    calls: list[dict[str, float]] = []
    for number in range(4):
        calls.append({**GENERATED, "rollout/step": number})
        calls += [{"train/grad_norm": 1.0 + i, "train/step": 2 * number + i} for i in (0, 1)]
        calls += [{**TRAINED, "rollout/step": number}, {"eval/aime": 0.5, "eval/step": number}]
    run_writer(WRITER, tmp_path, json.dumps(ARGUMENTS), json.dumps(calls))
    reading = tail(COLLECTOR, tmp_path)
    for number in range(4):
        found = values(reading, number)
        assert (found["gradient_norm"], found["trainer_step_seconds"], found["trainer_samples"]) == (1.5, 67, 128)
    assert {sample.step for sample in reading.samples} == {0, 1, 2, 3}
    assert len(reading.events) == 4
    assert (reading.facts["lifecycle"], reading.facts["mode"]) == ("finished", "sync_colocated")
    assert reading.unmapped == {}
