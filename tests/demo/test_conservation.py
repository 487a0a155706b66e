"""Laws that hold at every moment of every run, whatever the parameters."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.cluster import Cluster
from demo.rollouts import Rollout
from demo.scenarios import SCENARIOS, Scenario
from tests.demo.conftest import BASE, MATH, Recorder, simulated

scenarios = st.builds(
    dataclasses.replace,
    st.just(SCENARIOS["healthy"]),
    engines=st.integers(1, 3),
    max_num_seqs=st.integers(2, 64),
    kv_tokens=st.integers(5_000, 60_000),
    kv_watermark=st.floats(0.0, 0.3),
    response_tokens_median=st.floats(20, 1_500),
    response_sigma=st.floats(0.1, 1.2),
    max_tokens=st.integers(100, 4_000),
    group_size=st.sampled_from([1, 2, 4, 8]),
    batch_samples=st.sampled_from([16, 64]),
    max_in_flight=st.integers(1, 120),
    max_off_policy_steps=st.integers(0, 4),
    max_lead_batches=st.floats(1.0, 3.0),
    pause_seconds=st.floats(0.0, 3.0),
)
moments = st.lists(st.floats(0.0, 240.0), min_size=1, max_size=5).map(sorted)
laws = settings(max_examples=25, deadline=None)


def everywhere(cluster: Cluster) -> dict[int, Rollout]:
    """Every rollout that has not left, by id."""
    groups = [*cluster.orchestrator.incomplete.values(), *cluster.orchestrator.buffer]
    return {rollout.id: rollout for group in groups for rollout in group.rollouts}


@laws
@given(scenarios, st.integers(0, 99), moments)
def test_every_rollout_is_in_exactly_one_place(scenario: Scenario, seed: int, when: list[float]) -> None:
    cluster = Cluster(scenario, seed)
    for moment in when:
        cluster.advance(moment)
        orchestrator = cluster.orchestrator
        census = orchestrator.census()
        assert sum(census.values()) == orchestrator.dispatched
        assert min(census.values()) >= 0
        flight = census["waiting_slot"] + census["generating"] + census["scoring"]
        assert flight == orchestrator.in_flight.value <= scenario.max_in_flight
        assert census["queued"] == orchestrator.queue.value
        for engine in cluster.engines:
            ids = [rollout.id for rollout in engine.waiting]
            assert len(ids) == len(set(ids))
            assert not set(ids) & set(engine.running)


@laws
@given(scenarios, st.integers(0, 99), moments)
def test_engines_count_the_tokens_of_rollouts(scenario: Scenario, seed: int, when: list[float]) -> None:
    cluster = Cluster(scenario, seed)
    recorder = Recorder()
    cluster.observers.append(recorder)
    for moment in when:
        cluster.advance(moment)
        if cluster.orchestrator.dropped or len(recorder.steps) != cluster.orchestrator.taken_batches:
            continue  # what left is known to the recorder only once its step is done
        left = sum(step.batch.response_tokens for step in recorder.steps)
        here = everywhere(cluster).values()
        tokens = sum(cluster.engines[r.group.engine].rollout_tokens_at(r, moment) for r in here)
        assert sum(engine.generated_at(moment) for engine in cluster.engines) == left + tokens


@laws
@given(scenarios, st.integers(0, 99), moments)
def test_kv_never_exceeds_its_capacity(scenario: Scenario, seed: int, when: list[float]) -> None:
    cluster = Cluster(scenario, seed)
    for moment in when:
        cluster.advance(moment)
        for engine in cluster.engines:
            assert -0.01 <= engine.kv_tokens_at(moment) <= scenario.kv_tokens + 0.01
            assert len(engine.running) <= scenario.max_num_seqs


@laws
@given(scenarios, st.integers(0, 99))
def test_steps_add_up_and_staleness_is_bounded(scenario: Scenario, seed: int) -> None:
    cluster = Cluster(scenario, seed)
    recorder = Recorder()
    cluster.observers.append(recorder)
    cluster.advance(300.0)
    before = 0.0
    for step in recorder.steps:
        assert step.start == before
        assert step.timing.total == pytest.approx(step.end - step.start)
        assert min(dataclasses.astuple(step.timing)) >= 0
        before = step.end
        for total, in_flight, in_queue in step.batch.staleness():
            assert 0 <= total <= scenario.max_off_policy_steps
            assert min(in_flight, in_queue) >= 0
            assert in_flight + in_queue == total


@pytest.mark.parametrize("scenario", MATH)
def test_time_integrals_agree_with_littles_law(scenario: str) -> None:
    """Mean rollouts in flight = arrival rate x mean time in flight: two ways to the same number."""
    cluster, steps = simulated(scenario, 1, 1_300.0)
    later = steps[10:]
    seconds = later[-1].end - later[0].start
    rollouts = [rollout for step in later for rollout in step.batch.rollouts()]
    mean_time = sum(rollout.scored - rollout.dispatched for rollout in rollouts) / len(rollouts)
    in_flight = sum(step.means.in_flight * (step.end - step.start) for step in later) / seconds
    assert in_flight == pytest.approx(len(rollouts) / seconds * mean_time, rel=0.05)
    assert cluster.orchestrator.dropped == 0


@pytest.mark.parametrize("scenario", BASE)
def test_histograms_agree_with_the_rollouts(scenario: str) -> None:
    cluster, _ = simulated(scenario, 1, 1_300.0)
    for engine in cluster.engines:
        stats = engine.stats
        assert stats.request_generation_tokens.cumulative()[-1] == stats.finished
        assert stats.generated >= stats.request_generation_tokens.total
        assert stats.e2e_seconds.total == pytest.approx(stats.queue_seconds.total + stats.inference_seconds.total)
        assert stats.inference_seconds.total == pytest.approx(stats.prefill_seconds.total + stats.decode_seconds.total)
        assert stats.inter_token_seconds.cumulative()[-1] == pytest.approx(stats.generated, rel=0.02)


def test_a_full_cache_does_not_thrash() -> None:
    """Without a watermark a preempted request may come back only when all have room to grow."""
    tight = dataclasses.replace(
        SCENARIOS["generator-bound"], engines=1, kv_tokens=12_000, kv_watermark=0.0, max_in_flight=64
    )
    cluster = Cluster(tight, 1)
    cluster.advance(600.0)
    stats = cluster.engines[0].stats
    assert 0 < stats.preemptions < 10 * stats.finished
