"""The changes that a verdict proposes: levers, values and gains, with hand-computed numbers."""

from dataclasses import replace

import msgspec
import pytest

from bench.verdict.interventions import World, made, measured, prove, world
from server.verdict.advice import (
    Change,
    RunModel,
    advise,
    engine_curve,
    engine_speed,
    load_share,
    model_of,
    remember_speed,
)
from server.verdict.model import Advice, EngineCurve, SideEffect
from server.verdict.rules import judge
from server.verdict.throughput import numbers
from tests.verdict.support import HEALTHY, STARVED, seen
from tests.verdict.windows import FULL, NO_PLACE, QUIET

SURE = 1e6


def test_rollouts_that_only_decode_gain_what_the_engines_let_them() -> None:
    """All their time in engines that slow down by half at twice the load: 2 / ((1 + 2) / (1 + 1)) = 4/3."""
    model = RunModel(0.9, None, 1.0, 0.0, 10.0, None)
    assert model.rate(Change(in_flight=2.0), 10.0, SURE) == pytest.approx(4 / 3, rel=1e-3)
    assert model.rate(Change(in_flight=2.0), SURE, SURE) == pytest.approx(2.0, rel=1e-3)


def test_half_of_the_time_outside_the_engines() -> None:
    """x (0.5 + 0.5 (1 + x / ...)): with engines that never slow down twice as many make twice as much."""
    model = RunModel(0.9, None, 0.5, 0.0, 10.0, None)
    assert model.rate(Change(in_flight=2.0), SURE, SURE) == pytest.approx(2.0, rel=1e-3)
    # Without the half outside: one half of the time, at a speed that does not change.
    assert model.rate(Change(removed=0.5), SURE, SURE) == pytest.approx(2.0, rel=1e-3)


def test_seats_bound_what_more_rollouts_gain() -> None:
    model = RunModel(0.9, None, 1.0, 0.0, 10.0, 12.0)
    assert model.rate(Change(in_flight=4.0), SURE, SURE) == pytest.approx(1.2, rel=1e-3)
    assert model.rate(Change(in_flight=4.0, seats=2.0), SURE, SURE) == pytest.approx(2.4, rel=1e-3)
    assert model.rate(Change(in_flight=4.0, engines=2.0), SURE, SURE) == pytest.approx(2.4, rel=1e-3)


def test_no_change_of_production_exceeds_the_trainer() -> None:
    """It waits a fifth of the time: 1 / 0.8 at most, and less where both sides wait for each other."""
    model = RunModel(0.2, None, 1.0, 0.0, 10.0, None)
    assert model.rate(Change(in_flight=8.0), SURE, 40.0) == pytest.approx(1.25, abs=0.01)
    assert model.rate(Change(in_flight=8.0), SURE, 5.0) < 1.25
    assert model.rate(Change(), SURE, 12.0) == pytest.approx(1.0)


def test_prompts_that_come_slowly_make_more_places_useless() -> None:
    model = RunModel(0.5, None, 1.0, 0.0, 10.0, None, fed=False)
    assert model.rate(Change(in_flight=4.0), SURE, SURE) == 1.0


def test_the_speed_is_fitted_where_the_run_has_shown_it() -> None:
    """Seconds per token 10 + 1 r ms: at 10 requests half depends on the others, and in general 30 %."""
    bins: list[list[float]] = []
    for running in (5.0, 10.0, 20.0):
        for _ in range(30):
            bins = remember_speed(bins, (running, running / (0.010 + 0.001 * running)))
    speed = engine_speed(bins, 10.0)
    assert speed.fitted and [round(x) for x, _ in speed.points] == [5, 10, 20]
    assert load_share(bins, 10.0) == pytest.approx(0.5**0.75 * 0.3**0.25, rel=0.01)
    # One operating point shows no slope, and a minute at another one is no operating point.
    few = remember_speed(remember_speed([], (10.0, 500.0)), (20.0, 600.0))
    assert not engine_speed(few, 10.0).fitted and load_share(few, 10.0) is None
    assert engine_speed(few, 10.0).half == pytest.approx((10 * 0.3 / 0.7, 10 * 0.7 / 0.3, 10 * 0.92 / 0.08))


RUNNING = {'generator_requests{state="running"}': 57.0}
FREE = {"kv_cache_usage_ratio": None, "kv_concurrency_limit": None}
SHOWN = [[60.0, running, running / (0.010 + 0.001 * running)] for running in (5.0, 10.0, 20.0)]
"""Seconds per token 10 + 1 r ms, by requests; four engines run 57 requests: 14.25 in each."""


def curve(*told: object, bins: list[list[float]] | None = None, **facts: float) -> EngineCurve | None:
    return engine_curve(numbers(seen(HEALTHY, STARVED, *told, **facts)), SHOWN if bins is None else bins)  # type: ignore[arg-type]


def test_the_curve_of_an_engine_goes_through_what_the_run_has_shown() -> None:
    found = curve(RUNNING)
    assert found is not None and found.fitted and found.running == 14.25
    assert [(x, round(tokens)) for x, tokens in found.points] == [(5, 333), (10, 500), (20, 667)]
    # (14.25 / 24.25) of a token's time depends on the others; half way to 30 %: half of 15.2 where it fits is 10.
    share = (14.25 / 24.25) ** 0.75 * 0.3**0.25
    assert found.half[1] == pytest.approx(14.25 * (1 - share) / share) == pytest.approx(14.44, abs=0.01)
    # 15 + 20 + 30 ms over (1 + 5 / 14.44) + (1 + 10 / 14.44) + (1 + 20 / 14.44).
    assert found.alone is not None and found.alone[1] == pytest.approx(0.065 / (3 + 35 / 14.44), rel=1e-3)
    assert msgspec.convert(msgspec.to_builtins(found), EngineCurve) == found


def test_more_requests_stop_paying_where_twice_as_many_make_a_sixth_more() -> None:
    """2 (1 + u) / (1 + 2 u) = 7 / 6 at u = 2.5: 2.5 times the half, at most the seats, and what staleness allows."""
    free, cache = curve(RUNNING, FREE), curve(RUNNING, FREE, {"kv_cache_usage_ratio": 0.5})
    assert free is not None and free.seats is None and free.best == pytest.approx(2.5 * 14.44, abs=0.02)
    # Half of the cache holds 14.25 requests; 85 % of it is full.
    assert cache is not None and cache.seats == cache.best == pytest.approx(14.25 * 0.85 / 0.5)
    few = curve(RUNNING, FREE, max_num_seqs=16.0)
    assert few is not None and few.seats == few.best == 16.0


def test_a_curve_that_no_point_shows_has_a_best_only_at_its_seats() -> None:
    free = curve(RUNNING, FREE, bins=[])
    assert free is not None and (free.fitted, free.points, free.alone, free.best) == (False, (), None, None)
    # Even engines that slow down most gain from 15.2 requests on 14.25.
    narrow = curve(RUNNING, FREE, bins=[], max_num_seqs=15.0)
    assert narrow is not None and narrow.best == 15.0
    idle = {'generator_requests{state="running"}': 0.0}
    assert curve(idle, bins=[]) is None and curve({'generator_requests{state="running"}': None}) is None


def levers(*told: object, **facts: float) -> dict[str, Advice]:
    return {one.lever: one for one in advise(numbers(seen(*told, **facts)))[0]}  # type: ignore[arg-type]


IDLE = {'generator_requests{state="running"}': 57.0, "kv_cache_usage_ratio": 0.2, "in_flight_ratio": 1.0}


def test_idle_engines_ask_for_more_rollouts() -> None:
    told = (HEALTHY, STARVED, IDLE, {'in_flight_rollouts{state="generating"}': 57.0})
    found = judge(seen(*told))
    assert (found.outcome, found.cause) == ("orchestrator_bound", "concurrency_cap")
    first = found.advice[0]
    assert (first.lever, first.cost) == ("rollouts_in_flight", "setting")
    assert first.before == 57 and first.after is not None and first.after > 57
    # 16 requests per engine at least: nothing is known of more.
    assert first.gain is not None and first.gain[0] == pytest.approx(1.03 / 1.08, abs=0.01)
    assert first.gain[0] < first.gain[1] < first.gain[2] and first.why.endswith("must allow 36 requests per engine")
    assert first.text == f"Raise the rollouts in flight from 57 to {first.after:.0f}."


def test_staleness_grows_with_the_rollouts_in_flight() -> None:
    told = (HEALTHY, STARVED, IDLE, {'staleness_versions{level="trajectory",stat="mean"}': 2.0})
    one = levers(*told)["rollouts_in_flight"]
    assert one.after is not None and one.before is not None
    assert one.side_effects == (SideEffect("staleness_versions", 2.0, round(2.0 * one.after / one.before, 2)),)


def test_without_records_the_requests_show_how_much_of_a_rollout_is_in_the_engines() -> None:
    """57 of 60 rollouts in flight are requests; with no engine slowdown assumed their number would gain all of it."""
    told = (HEALTHY, STARVED, IDLE, NO_PLACE, {"rollouts_in_flight": 60.0})
    model = model_of(numbers(seen(*told, max_in_flight=60.0)))
    assert model is not None and (model.inside, model.queued) == (pytest.approx(57 / 60), 0.0)


def test_rollouts_in_flight_stay_within_the_staleness_bound() -> None:
    """The mean of now is 2.5. With a bound of 3 only twice as many are tried; with 12 it takes 2.5 times as many."""
    stale = {'staleness_versions{level="trajectory",stat="mean"}': 2.5}
    far, near = (
        levers(HEALTHY, STARVED, IDLE, NO_PLACE, stale, max_in_flight=57.0, max_staleness_versions=bound)
        for bound in (12.0, 3.0)
    )
    assert [one["rollouts_in_flight"].after for one in (far, near)] == [142, 114]


def test_requests_that_wait_beside_a_free_cache_want_seats() -> None:
    waits = {'generator_requests{state="waiting"}': 60.0, 'generator_requests{state="running"}': 40.0,
             "kv_cache_usage_ratio": 0.2, "kv_concurrency_limit": 40.0}  # fmt: skip
    found = judge(seen(HEALTHY, STARVED, FULL, waits, max_num_seqs=10.0))
    assert (found.outcome, found.cause) == ("generator_bound", "max_num_seqs")
    one = levers(HEALTHY, STARVED, FULL, waits, max_num_seqs=10.0)["max_num_seqs"]
    # 10 run in each of four engines and 15 wait; at 85 % of the cache 4.25 times as many fit.
    assert (one.before, one.after) == (10, 43)
    assert "max_num_seqs" not in levers(HEALTHY, STARVED, FULL, waits, {"kv_cache_usage_ratio": 0.95})


def test_levers_whose_inputs_are_missing_say_what_to_log() -> None:
    n = numbers(seen(HEALTHY, STARVED, QUIET, NO_PLACE))
    assert advise(n)[1]["rollouts_in_flight"].startswith("log rollouts in flight")
    assert advise(n)[1]["gpu_split_generator"] == "state trainer_gpus and generator_gpus in [run.NAME.facts]"
    assert "gpu_split_generator" not in levers(HEALTHY, STARVED, QUIET, NO_PLACE)
    unknown = numbers(seen(HEALTHY, {"trainer_wait_ratio": None}))
    assert advise(unknown) == ((), {"every change": "log the trainer's wait next to its step time"})
    assert list(judge(seen(HEALTHY, STARVED, QUIET, NO_PLACE)).advice_lacks) == [
        f"{lever}: {how}" for lever, how in advise(n)[1].items()
    ]


def test_no_more_rollouts_where_no_sandbox_is_left() -> None:
    told = (HEALTHY, STARVED, IDLE, {'in_flight_rollouts{state="generating"}': 57.0})
    assert "rollouts_in_flight" in levers(*told)
    assert "rollouts_in_flight" not in levers(*told, {'sandbox_quota_used_ratio{resource="sandboxes"}': 0.97})


def test_advice_survives_json() -> None:
    one = Advice("rollouts_in_flight", 330.0, 660.0, "rollouts", (1.2, 1.4, 1.9), "setting",
                 (SideEffect("staleness_versions", 2.5, 4.8),), "why", "Raise it.")  # fmt: skip
    assert msgspec.to_builtins(one)["from"] == 330.0 and list(msgspec.to_builtins(one)["side_effects"]) == [
        {"signal": "staleness_versions", "from": 2.5, "to": 4.8}
    ]
    assert msgspec.convert(msgspec.to_builtins(one), Advice) == one


# ---- proof by intervention: whole worlds are in `make eval-advice`


@pytest.mark.parametrize(("seed", "lever"), [(18, "max_num_seqs"), (21, "rollouts_in_flight"), (26, "reward_workers")])
def test_the_first_advice_is_made_and_holds(seed: int, lever: str) -> None:
    proof = prove(seed)
    assert proof.advice is not None and proof.advice.lever == lever
    assert proof.within and proof.calibrated and not proof.harmful, proof


def test_a_change_in_the_middle_of_a_run_is_a_change() -> None:
    """Engines that come later take requests, and the same seed without a change is the same run."""
    of = world(18)
    short = World(replace(of.config, horizon=of.at + 300.0), of.at, of.power)
    base = measured(short, {})
    assert measured(short, {}) == base
    assert measured(short, made(short, "max_num_seqs", None, 23.0) or {}) > 1.3 * base
    assert measured(short, {"engines": 2 * of.config.engines}) > 1.3 * base
    assert measured(short, {"engines": 1}) < 0.6 * base
