"""Recorded real runs played at speed: what the product reads of them is what the recording's own truth says."""

import pytest

from bench.real_runs import recording, variants
from bench.real_runs.play import Tick, play
from bench.real_runs.recording import Page, Recording


def value(tick: Tick, name: str) -> float | None:
    return {signal.name: signal.value for signal in tick.status.signals.values()}[name]


@pytest.mark.parametrize("suffix", ["", "+tensorboard"])
def test_a_played_run_has_the_numbers_of_its_trainer(suffix: str) -> None:
    chosen = variants.case(f"trainer_bound{suffix}")
    played = play(chosen.recording, sink=chosen.sink)
    # 20 rows; the first at 82.35 s, on the grid of 5 s, and attached at the tick that follows it.
    assert played.attached - played.recording.phases[0].begin == pytest.approx(0.4, abs=0.01)
    last = played.ticks[-1]
    # truth.json, last_10_steps
    assert value(last, "trainer_wait_ratio") == pytest.approx(0.025908, abs=1e-6)
    assert value(last, "trainer_step_seconds") == pytest.approx(6.719704, abs=1e-5)
    assert value(last, "policy_version") == 20
    assert last.status.lifecycle == "finished"


def test_an_engine_that_died_is_down_from_its_last_page_to_its_return() -> None:
    chosen = recording.load("engine_killed")
    played = play(chosen)
    outage = chosen.phases[1]
    down = [tick.at - outage.begin for tick in played.ticks if not all(target.up for target in tick.status.trust)]
    # Each 5 s from the first read after the kill; a dead target is read again after 48 to 72 s.
    assert down == pytest.approx([3.752 + 5 * number for number in range(len(down))], abs=0.001)
    assert outage.end - outage.begin - 5 < down[-1] < outage.end - outage.begin + 72


def test_a_recording_of_two_engines_is_one_fleet() -> None:
    one = recording.load("env_bound")
    fleet = Recording(one.name, (one.engines[0], one.engines[0][:20]), one.log, one.phases, one.attach_at)
    last = play(fleet).ticks[-1].status
    engines = {
        signal.name: signal.value for signal in last.signals.values() if signal.name.startswith("generator_engines")
    }
    assert engines['generator_engines{state="up"}'] == 2


def test_a_trainer_that_stops_leaves_an_idle_engine() -> None:
    before, after = recording.load("trainer_bound"), variants.case("trainer_bound+stops").recording
    phases = after.phases
    assert [phase.right for phase in phases] == [("trainer_bound",), ("stalled",), ("trainer_bound",)]
    assert phases[1].end - phases[1].begin == 90
    assert after.end - before.end == 90
    assert before.log is not None and after.log is not None
    assert not [row for row in after.log.rows if phases[1].begin < row.at < phases[1].end]
    assert len(after.log.rows) == len(before.log.rows)
    idle = [page for page in after.engines[0] if phases[1].begin < page.at <= phases[1].end]
    assert len(idle) == 20
    assert {gauge(page, "vllm:num_requests_running") for page in idle} == {0.0}


def test_a_change_of_regime_is_one_run_on_one_engine() -> None:
    second = variants.case("trainer_bound>env_bound").recording
    assert second.log is not None
    steps = [row.metrics()["train/global_step"] for row in second.log.rows if "train/global_step" in row.metrics()]
    # 20 of trainer_bound, then 3 to 11 of env_bound and its closing row.
    assert steps == [*range(1, 21), *range(21, 30), 29]
    assert len({row.values["run_id"] for row in second.log.rows}) == 1
    tokens = [gauge(page, "vllm:generation_tokens_total") for page in second.engines[0]]
    assert tokens == sorted(tokens)
    assert len({gauge(page, "process_start_time_seconds") for page in second.engines[0]}) == 1


def gauge(page: Page, name: str) -> float:
    assert page.body is not None
    return next(
        float(line.split()[-1]) for line in page.body.decode().splitlines() if line.startswith((name + "{", name + " "))
    )
