"""miles runs: dashboard, event log of several processes, page, and what it logs beyond slime."""

import json
import shutil
from pathlib import Path

import pytest

from collectors.model import Limits, Reading
from collectors.trainers import miles, slime
from tests.collectors import _slime
from tests.collectors._frameworks import counts, in_parts, tail, values
from tests.collectors._reading import TESTDATA
from tests.support_writers import run_writer

RUNS = TESTDATA / "miles"
COLLECTOR = miles.COLLECTOR
PAGE = (RUNS / "page.prom").read_bytes()
# Rollout 3 by hand: slime's, and what miles adds.
THREE = _slime.THREE | {
    'trainer_mfu_ratio{basis="busy"}': 0.2,
    "mismatch_kl_mean": 0.001,
    "policy_version": 3,
    "mixed_version_ratio": 0.2,
    "staleness_versions_mean": 1.5,
    "staleness_versions_max": 3,
    'rollout_errors{type="aborted_group"}': 1,
    # Shares whatever the names say: 4 and 1 of 16 groups.
    "groups_none_solved_ratio": 0.25,
    "groups_all_solved_ratio": 0.0625,
    "groups_zero_advantage_ratio": 5 / 16,
}
IN_SAMPLES = {"queue_samples": 13 * 8, "stale_dropped_rollouts": 2 * 8, "rollout_tokens_per_second": 1600}


def page(state: dict | None = None, body: bytes = PAGE) -> Reading:
    return miles.parse(body, state if state is not None else {}, Limits())


def test_the_dashboard_knows_its_arguments() -> None:
    reading = tail(COLLECTOR, RUNS / "dashboard_run")
    assert values(reading, 3) == pytest.approx(THREE | IN_SAMPLES)
    expected = {
        "framework": "miles", "mode": "async", "group_size": 8, "batch_samples": 128, "max_response_tokens": 1024,
        "trainer_gpus": 8, "generator_gpus": 16, "model": "GLM-4.7-Flash", "run_name": "glm-async",
    }  # fmt: skip
    assert reading.facts == expected
    assert [event.detail for event in reading.events] == ["rollout 5"]
    assert reading.unmapped == {}


def test_the_event_log_is_one_file_per_process() -> None:
    reading = tail(COLLECTOR, RUNS / "events_run")
    assert values(reading, 3) == pytest.approx(THREE | {"queue_groups": 13})
    assert (reading.facts, reading.dropped) == ({"framework": "miles", "mode": "async"}, 0)
    assert min(sample.ts for sample in reading.samples) == 1795248000


@pytest.mark.parametrize("name", ["dashboard_run", "events_run"])
def test_in_parts_it_is_the_same(name: str) -> None:
    readings, whole = in_parts(COLLECTOR, RUNS / name, 6), tail(COLLECTOR, RUNS / name)
    for number in range(8):
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, number)
        assert found == values(whole, number)
    # A file that runs ahead of the others would look like a run that goes back.
    assert {(s.step, s.ts) for r in readings for s in r.samples} == {(s.step, s.ts) for s in whole.samples}


def test_event_files_that_grow_are_read_once(tmp_path: Path) -> None:
    """The trainer's file is behind: its rows come late, and no value twice."""
    source = RUNS / "events_run" / "events"
    folder = tmp_path / "events"
    folder.mkdir()
    readings, cursor = [], {}
    names = ("rollout_manager.jsonl", "train_actor_cell0_rank0.jsonl")
    texts = {name: (source / name).read_text().splitlines(keepends=True) for name in names}
    for number in range(8):
        for name, every in ((names[0], 1), (names[1], 6)):
            with (folder / name).open("a") as file:
                file.writelines(texts[name][number * every : (number + 1) * every])
        readings.append(tail(COLLECTOR, tmp_path, cursor))
        cursor = readings[-1].cursor
    for number in range(7):
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, number)
        assert found["gradient_norm"] == (1 if number != 4 else 0.5)
        assert found["trainer_step_seconds"] == 80
    assert set(counts(readings, "trainer_wait_seconds").values()) == {1}


def test_a_torn_event_is_counted(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "events_run", tmp_path / "run")
    with (tmp_path / "run" / "events" / "rollout_manager.jsonl").open("a") as file:
        file.write('{"type":"metric","met\n{"type":"metric","timestamp":"yesterday","metrics":{}}\n')
    reading = tail(COLLECTOR, tmp_path / "run")
    assert (reading.dropped, reading.why_dropped) == (2, "a line is not an event")
    assert values(reading, 3) == pytest.approx(THREE | {"queue_groups": 13})


def test_partial_rewards_leave_the_causes_open(tmp_path: Path) -> None:
    """Half a point for all eight is no gradient either: then all-zero and all-one are not the whole story."""
    generated = {"rollout/response_len/mean": 1.0, "rollout/zero_std/all_one_percentage": 0.0}
    some = {"rollout/zero_std/count_0.0": 4, "rollout/zero_std/all_zero_percentage": 0.25}
    graded = {"rollout/zero_std/count_0.5": 2}
    alone = {"rollout/zero_std/all_zero_percentage": 0.0, **graded}
    rows = [{**generated, **some}, {**generated, **some, **graded}, {**generated, **alone}, {**generated, **some}]
    lines = [
        json.dumps({"ts": 1e9 + n, "step_key": "rollout/step", "step": n, "metrics": row}) for n, row in enumerate(rows)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    reading = tail(COLLECTOR, tmp_path)
    shares = [values(reading, number).get("groups_zero_advantage_ratio") for number in range(4)]
    assert shares == [0.25, (4 + 2) / 16, None, 0.25]
    assert [values(reading, number).get("groups_none_solved_ratio") for number in range(4)] == [0.25, None, None, None]


def test_the_page_holds_the_last_values() -> None:
    """Scraped after rollout 5 was trained on, while rollout 6 had been generated: the page says 5."""
    state: dict = {"options": {"group_size": "8"}}
    reading = page(state)
    found = values(reading, 5)
    assert (found["trainer_step_seconds"], found["trainer_wait_seconds"]) == (80, 30 - 5 - 6 - 1)
    assert (found["gradient_norm"], found['trainer_mfu_ratio{basis="busy"}']) == (1.5, 0.2)
    assert found["groups_none_solved_ratio"] == 0.25
    assert found["queue_samples"] == 16 * 8
    assert (reading.facts["mode"], reading.unmapped) == ("async", {})
    assert page(state).samples == ()  # nothing new


def test_a_page_tells_what_changed_and_what_belongs_to_it() -> None:
    """The trainer logs rollout 6: its constants are said again under the new step, the generator's half is not."""
    state: dict = {}
    page(state)
    body = PAGE.replace(b'rollout_step{run_name="glm-async"} 5.0', b'rollout_step{run_name="glm-async"} 6.0')
    body = body.replace(
        b'perf_train_wait_time{run_name="glm-async"} 30.0', b'perf_train_wait_time{run_name="glm-async"} 31.0'
    )
    found = values(page(state, body), 6)
    assert found["trainer_step_seconds"] == 80
    assert not {"response_tokens_mean", "gradient_norm"} & found.keys()


def test_a_page_in_groups_without_their_size() -> None:
    found = values(page(), 5)
    assert found["queue_groups"] == 16
    assert "queue_samples" not in found


def test_the_fork_and_its_origin_do_not_claim_each_other() -> None:
    for run in ("dashboard_run", "events_run"):
        assert slime.COLLECTOR.matches_path(RUNS / run) is None
        assert COLLECTOR.matches_path(RUNS / run)


WRITER = """
import json, sys, mlflow
mlflow.set_tracking_uri(f"sqlite:///{sys.argv[1]}/mlflow.db")
mlflow.set_experiment("miles")
mlflow.start_run(run_name="x")
mlflow.log_params({"rollout_batch_size": "16", "n_samples_per_prompt": "8", "fully_async": "True"})
for line in open(sys.argv[2]):
    row = json.loads(line)
    metrics = {key.replace("@", "_"): value for key, value in row["metrics"].items()}
    mlflow.log_metrics(metrics, step=row["step"], timestamp=int(row["ts"] * 1000))
mlflow.end_run()
"""


def test_mlflow_through_the_real_writer(tmp_path: Path) -> None:
    run_writer(WRITER, tmp_path, RUNS / "dashboard_run" / "dashboard" / "metrics.jsonl")
    reading = tail(COLLECTOR, tmp_path)
    expected = THREE | {"queue_samples": 13 * 8, "stale_dropped_rollouts": 16}
    assert values(reading, 3) == pytest.approx(expected)
    assert (reading.facts["mode"], reading.facts["batch_samples"]) == ("async", 128)
