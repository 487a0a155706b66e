"""ART: the pipeline trainer and a loop of one's own, other splits between the steps, totals since the start."""

import json
from datetime import datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from collectors.trainers import art
from tests.collectors._frameworks import collected, counts, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA, by_step

PIPELINE, LOOP = TESTDATA / "art" / "pipeline", TESTDATA / "art" / "loop"
COLLECTOR = art.COLLECTOR
COMMON = {
    "trainer_step_seconds": 50.0,
    "trainer_compute_seconds": 30.0,
    "trainer_samples": 32.0,
    "trainer_groups": 8.0,
    "processed_tokens": 40960.0,
    "reward_mean": 0.375,
    "reward_group_std_mean": 0.25,
    "rollout_error_ratio": 0.03125,
    "loss_mean": 0.125,
    "entropy_mean": 0.75,
    "learning_rate": 5e-6,
    "gradient_norm": 0.5,
    "gradient_nonfinite": 0.0,
}


def test_a_step_of_the_pipeline_trainer() -> None:
    reading = tail(COLLECTOR, PIPELINE)
    assert values(reading, 2) == {
        **COMMON,
        "trainer_wait_seconds": 15.0,
        "trainer_other_seconds": 5.0,
        "staleness_versions_mean": 1.5,
        "stale_dropped_rollouts": 8.0,  # two groups of four since the step before
    }
    assert reading.facts == {"framework": "art", "mode": "async"}
    assert reading.unmapped == {}
    # Groups of equal rewards are gone before they are counted: 8 of 8 are trainable by construction.
    assert not [name for _, _, name in collected([reading]) if name.startswith("groups_zero")]


def test_a_step_of_a_loop_of_ones_own() -> None:
    reading = tail(COLLECTOR, LOOP)
    assert values(reading, 5) == {
        **COMMON,
        "generation_seconds": 18.0,
        "trainer_other_seconds": 2.0,
        "groups_zero_advantage_ratio": 0.25,
    }
    assert reading.facts["usual_mode"] == "sync_colocated"


def test_what_was_dropped_before_the_first_step_read_is_nobodys() -> None:
    assert min(by_step(tail(COLLECTOR, PIPELINE).samples, "stale_dropped_rollouts")) == 2


def test_a_total_that_begins_anew_counts_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [{"step": step, "train/reward": 1.0, "train/discarded_stale_groups": total} for step, total in TOTALS]
    extra = {
        "recorded_at": "2026-08-21T10:00:00",
        "data/step_num_groups_submitted": 8.0,
        "data/step_num_trajectories": 8.0,
    }
    path.write_text("".join(json.dumps(row | extra) + "\n" for row in rows))
    assert by_step(tail(COLLECTOR, path).samples, "stale_dropped_rollouts") == {2: 3.0, 3: 0.0, 4: 2.0}


TOTALS = [(1, 5.0), (2, 8.0), (3, 8.0), (4, 2.0)]


def test_validation_of_an_earlier_step_is_no_step() -> None:
    reading = tail(COLLECTOR, PIPELINE)
    assert counts([reading], "trainer_step_seconds") == dict.fromkeys(range(1, 13), 1)
    assert "trainer_eval_seconds" not in values(reading, 4)


def test_an_infinite_gradient_is_told() -> None:
    fourth = values(tail(COLLECTOR, PIPELINE), 4)
    assert (fourth["gradient_nonfinite"], "gradient_norm" in fourth) == (1.0, False)


def test_times_are_the_machines_own() -> None:
    assert {s.ts for s in tail(COLLECTOR, PIPELINE).samples if s.step == 3} == {
        datetime.fromisoformat(json.loads((PIPELINE / "history.jsonl").read_text().splitlines()[2])["recorded_at"])
        .astimezone()
        .timestamp()
    }


@given(st.text() | st.integers() | st.none() | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", fullmatch=True))
def test_odd_times_are_none(text: object) -> None:
    assert art._time(text) is None or isinstance(art._time(text), float)


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    for name, folder in (("a", PIPELINE), ("b", LOOP)):
        whole = collected([tail(COLLECTOR, folder)])
        assert collected(in_parts(COLLECTOR, folder, 3)) == whole
        (tmp_path / name).mkdir()
        grown = live(COLLECTOR, folder / "history.jsonl", tmp_path / name / "history.jsonl")
        assert collected(grown) == whole
        assert set(counts(grown, "trainer_step_seconds").values()) == {1}


def test_a_resumed_run_steps_back_and_a_new_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines = (LOOP / "history.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    first = tail(COLLECTOR, path)
    with path.open("a") as file:
        file.write(lines[9].replace('"train/reward": 0.375', '"train/reward": 0.875'))
    second = tail(COLLECTOR, path, first.cursor)
    assert by_step(second.samples, "reward_mean") == {9: 0.875}
    path.write_text(lines[0])
    assert by_step(tail(COLLECTOR, path, second.cursor).samples, "reward_mean") == {1: 0.375}
