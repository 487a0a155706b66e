"""Step signals against numbers written by hand."""

import pytest

from server.signals import load
from server.signals.groups import zero_advantage_group_ratio as SPLIT
from server.signals.groups import zero_advantage_groups as COUNTED
from server.signals.groups import zero_advantage_low_ratio as AT_LEAST
from server.signals.groups import zero_advantage_ratio as ZERO
from server.signals.model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals.queue import capacity_samples_per_second as CAPACITY
from server.signals.queue import trainer_samples_per_second as TRAINED
from server.signals.rollouts import response_tokens as RESPONSE
from server.signals.staleness import staleness_versions as STALENESS
from server.signals.trainer import trainer_mfu_ratio as MFU
from server.signals.trainer import trainer_phase_seconds as PHASE
from server.signals.trainer import trainer_step_seconds as STEP
from server.signals.trainer import trainer_wait_ratio as WAIT
from server.signals.weights import policy_version as VERSION
from tests.signals.support import NOW, add, book, view

LEVEL = ("level", "trajectory")
COMPLETED = ("basis", "completed")


def values(answer: Answer) -> dict[tuple[tuple[str, str], ...], float]:
    assert isinstance(answer, (list, tuple)), answer
    return {value.labels: value.value for value in answer}


def why(answer: Answer) -> str:
    assert isinstance(answer, (Unknown, NotApplicable)), answer
    return answer.why


def steps(*pairs: tuple[float, float]) -> View:
    rows = [{"trainer_step_seconds": step, "trainer_wait_seconds": wait} for step, wait in pairs]
    return view(steps=book(rows))


def test_wait_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    # 1 s of 2 s, 30 s of 100 s, 1 s of 2 s: mean of ratios would be 0.433.
    assert values(WAIT.compute(steps((2, 1), (100, 30), (2, 1)))) == {(): pytest.approx(32 / 104)}


def test_wait_looks_at_the_last_ten_steps_only() -> None:
    assert values(WAIT.compute(steps(*[(10, 10)] * 5, *[(10, 1)] * 10))) == {(): pytest.approx(0.1)}


def test_two_steps_are_too_few_and_say_so() -> None:
    assert why(WAIT.compute(steps((10, 1), (10, 1)))) == "2 of the 3 steps needed so far; no action needed"


def test_an_absent_wait_is_unknown_never_zero() -> None:
    answer = WAIT.compute(view(steps=book([{"trainer_step_seconds": 10.0}] * 5)))
    assert isinstance(answer, Unknown) and "time/wait_for_batch" in answer.why


@pytest.mark.parametrize("mode", ["sync_colocated", "sync_split"])
def test_wait_and_queue_do_not_apply_to_synchronous_runs(mode: str) -> None:
    rows = [{"trainer_step_seconds": 10.0, "trainer_wait_seconds": 5.0, "trainer_samples": 8.0}] * 5
    sync = view(steps=book(rows), mode=mode)
    for item in load():
        if item.name in ("trainer_wait_ratio", "capacity_samples_per_second", "queue_samples", "queue_batches"):
            assert isinstance(item, Signal) and isinstance(item.compute(sync), NotApplicable), item.name


def test_one_step_mode_has_a_wait() -> None:
    rows = [{"trainer_step_seconds": 10.0, "trainer_wait_seconds": 5.0}] * 3
    assert values(WAIT.compute(view(steps=book(rows), mode="one_step"))) == {(): 0.5}


def test_nothing_after_the_views_instant_is_seen() -> None:
    rows = [{"trainer_step_seconds": float(n)} for n in range(1, 6)]
    past = View(NOW - 30, "async", "running", {}, {}, book(rows))
    assert values(STEP.compute(past)) == {(): 2.5}  # steps 1..4


def test_phases_sum_to_the_step() -> None:
    row = {
        "trainer_step_seconds": 30.0, "trainer_wait_seconds": 18.0, "trainer_compute_seconds": 9.0,
        "trainer_weight_sync_seconds": 1.5, "trainer_checkpoint_seconds": 0.5, "trainer_other_seconds": 1.0,
    }  # fmt: skip
    found = values(PHASE.compute(view(steps=book([row] * 4))))
    assert found == {(("phase", "wait"),): 18.0, (("phase", "compute"),): 9.0, (("phase", "overhead"),): 3.0}
    assert sum(found.values()) == 30.0


def test_a_rare_checkpoint_is_spread_over_the_window() -> None:
    rows = [{"trainer_step_seconds": 10.0, "trainer_compute_seconds": 10.0}] * 9
    rows.append({"trainer_step_seconds": 30.0, "trainer_compute_seconds": 10.0, "trainer_checkpoint_seconds": 20.0})
    assert values(PHASE.compute(view(steps=book(rows))))[(("phase", "overhead"),)] == 2.0


def test_a_step_without_any_phase_has_no_phases() -> None:
    assert isinstance(PHASE.compute(view(steps=book([{"trainer_step_seconds": 10.0}] * 4))), Unknown)


def test_a_synchronous_step_shows_generation_and_the_rest() -> None:
    rows = [{"trainer_step_seconds": 10.0, "generation_seconds": 7.0}] * 4
    found = values(PHASE.compute(view(steps=book(rows), mode="sync_colocated")))
    assert found == {(("phase", "generation"),): 7.0, (("phase", "compute"),): 3.0}


def test_staleness_mean_of_means_and_max_of_maxima() -> None:
    rows = [{"staleness_versions_mean": float(n), "staleness_versions_max": float(2 * n)} for n in (1, 2, 6)]
    found = values(STALENESS.compute(view(steps=book(rows))))
    assert found == {(LEVEL, ("stat", "mean")): 3.0, (LEVEL, ("stat", "max")): 12.0}


def test_the_largest_staleness_alone_is_told_alone() -> None:
    rows = [{"staleness_versions_max": float(n)} for n in (1, 4, 2)]
    assert values(STALENESS.compute(view(steps=book(rows)))) == {(LEVEL, ("stat", "max")): 4.0}


def test_staleness_is_zero_by_definition_in_synchronous_runs() -> None:
    found = values(STALENESS.compute(view(mode="sync_colocated")))
    assert found == {(LEVEL, ("stat", "mean")): 0.0, (LEVEL, ("stat", "max")): 0.0}


def test_zero_advantage_from_the_split_adds_its_causes() -> None:
    rows = [{"groups_all_solved_ratio": 0.3, "groups_none_solved_ratio": 0.25}] * 3
    assert values(ZERO.compute(view(steps=book(rows)))) == {(COMPLETED,): pytest.approx(0.55)}
    assert values(SPLIT.compute(view(steps=book(rows)))) == {
        (COMPLETED, ("cause", "all_solved")): pytest.approx(0.3),
        (COMPLETED, ("cause", "none_solved")): pytest.approx(0.25),
    }


def test_a_bare_share_has_no_known_cause() -> None:
    rows = [{"groups_zero_advantage_ratio": share} for share in (0.0, 0.25, 0.125)]
    assert values(ZERO.compute(view(steps=book(rows)))) == {(COMPLETED,): 0.125}
    assert values(SPLIT.compute(view(steps=book(rows)))) == {(COMPLETED, ("cause", "equal_unknown")): 0.125}


@pytest.mark.parametrize(
    ("logged", "facts", "count", "low"),
    [
        # 8 groups in each of 5 steps; Wilson: (0.5 + 0.048 - 1.96 x sqrt(0.25 / 40 + 0.096 / 160)) / 1.096
        ({"trainer_groups": 8.0}, {}, 40.0, 0.352),
        ({"trainer_samples": 32.0}, {"group_size": 4.0}, 40.0, 0.352),
        # Without a number of groups the share stands as the trainer logs it.
        ({"trainer_samples": 32.0}, {}, None, 0.5),
    ],
)
def test_a_logged_share_has_the_number_of_groups_of_its_steps(
    logged: dict[str, float], facts: dict[str, float], count: float | None, low: float
) -> None:
    seen = view(steps=book([{"groups_zero_advantage_ratio": 0.5, **logged}] * 5), **facts)
    found = COUNTED.compute(seen)
    assert (None if isinstance(found, Unknown) else values(found)[(COMPLETED,)]) == count
    assert values(AT_LEAST.compute(seen)) == {(COMPLETED,): pytest.approx(low, abs=5e-4)}


def test_half_a_split_is_not_a_split() -> None:
    """all_solved alone would make none_solved a silent zero."""
    rows = [{"groups_all_solved_ratio": 0.3}] * 3
    assert isinstance(ZERO.compute(view(steps=book(rows))), Unknown)


def test_capacity_takes_samples_from_another_axis() -> None:
    steps = book([{"trainer_step_seconds": 40.0, "trainer_wait_seconds": 24.0}] * 4)
    add(steps, [{"trainer_samples": 512.0}] * 4, "orchestrator")
    assert values(CAPACITY.compute(view(steps=steps))) == {(): 32.0}  # 512 / (40 - 24)
    assert values(TRAINED.compute(view(steps=steps))) == {(): 12.8}  # 512 / 40


def test_a_shipped_batch_counts_when_the_trainer_has_consumed_it() -> None:
    """Three steps trained, five shipped: the window ends with the third."""
    steps = book([{"trainer_step_seconds": 10.0}] * 3, seconds=1.0)
    shipped = [{"groups_zero_advantage_ratio": share} for share in (0.1, 0.2, 0.3, 0.9, 0.9)]
    add(steps, shipped, "orchestrator", seconds=0.1)
    assert values(ZERO.compute(view(steps=steps))) == {(COMPLETED,): pytest.approx(0.2)}


def test_capacity_falls_back_to_the_configured_batch() -> None:
    steps = book([{"trainer_step_seconds": 40.0, "trainer_wait_seconds": 24.0}] * 4)
    assert values(CAPACITY.compute(view(steps=steps, batch_samples=256.0))) == {(): 16.0}
    assert isinstance(CAPACITY.compute(view(steps=steps)), Unknown)


def test_response_length_takes_each_statistic_by_its_own_rule() -> None:
    rows = [
        {"response_tokens_mean": m, "response_tokens_p90": 2 * m, "response_tokens_max": 3 * m}
        for m in (10.0, 20.0, 60.0)
    ]
    assert values(RESPONSE.compute(view(steps=book(rows)))) == {
        (("stat", "mean"),): 30.0, (("stat", "p90"),): 60.0, (("stat", "max"),): 180.0
    }  # fmt: skip
    # With 8, 8 and 16 samples: (80 + 160 + 960) / 32.
    weighted = [row | {"trainer_samples": n} for row, n in zip(rows, (8.0, 8.0, 16.0), strict=True)]
    assert values(RESPONSE.compute(view(steps=book(weighted))))[(("stat", "mean"),)] == 37.5
    # Where one step does not log its samples all steps count alike.
    assert values(RESPONSE.compute(view(steps=book([rows[0], *weighted[1:]]))))[(("stat", "mean"),)] == 30.0


def test_mfu_keeps_its_basis_apart() -> None:
    steps = book([])
    for number in range(3):
        steps.put("trainer", 1, number, NOW - 3 + number, {("trainer_mfu_ratio", (("basis", "busy"),)): 0.3})
    assert values(MFU.compute(view(steps=steps))) == {(("basis", "busy"),): pytest.approx(0.3)}


def test_policy_version_reported_or_the_step() -> None:
    assert values(VERSION.compute(view(steps=book([{"trainer_step_seconds": 1.0}] * 7)))) == {(): 7.0}
    assert values(VERSION.compute(view(steps=book([{"policy_version": 41.0, "trainer_step_seconds": 1.0}])))) == {
        (): 41.0
    }


def test_steps_of_an_older_life_are_gone() -> None:
    steps = book([{"trainer_step_seconds": 10.0}] * 5)
    steps.put("trainer", 2, 3, NOW + 1, {("trainer_step_seconds", ()): 99.0})
    later = View(NOW + 1, "async", "running", {}, {}, steps)
    assert why(STEP.compute(later)).startswith("1 of the 3 steps")


@pytest.mark.parametrize("item", load(), ids=lambda item: item.name)
def test_every_signal_answers_an_empty_view_with_words(item: object) -> None:
    """No data at all: unknown or not applicable with a hint, or 0 by definition; never an exception."""
    if isinstance(item, Signal):
        for mode in ("", "async", "sync_colocated"):
            answer = item.compute(view(mode=mode))
            if isinstance(answer, (list, tuple)):
                assert item.name == "staleness_versions" and mode == "sync_colocated"
            else:
                assert len(answer.why) > 20


@pytest.mark.parametrize("item", load(), ids=lambda item: item.name)
def test_signals_read_catalogue_metrics_only(item: object) -> None:
    from collectors.catalog import METRICS  # noqa: PLC0415  the catalogue is large; only this test needs it

    names = item.inputs if isinstance(item, Signal) else (item.metric,)  # type: ignore[attr-defined]
    if not isinstance(item, Signal) and item.of == "signal":  # type: ignore[attr-defined]
        assert set(names) <= {one.name for one in load() if isinstance(one, Signal) and one.cadence == "tick"}
        return
    # What happens to a sandbox or a rollout is a record's change, not a metric.
    happenings = {"sandbox_created", "sandbox_failed", "sandbox_spinup", "rollout_left", "group_closed"}
    assert set(names) <= set(METRICS) | happenings


def test_value_is_plain_data() -> None:
    assert Value(1.0) == Value(1.0, ())
