"""When the KV ceiling comes down to what the run keeps in flight: lengths, slopes and seconds by hand."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from server.signals.kv_cache import FEWEST, MOST, Lengths, kv_concurrency_limit_forecast_seconds
from server.signals.model import Answer, Unknown, View
from server.signals.window import Gauge, StepBook

T0 = 900_000.0
CAPACITY = 1_000_000.0


class Fleet:
    """One engine of a million tokens with 40 sequences, looked at every minute; steps of five minutes."""

    def __init__(self, length: Callable[[float], float], **facts: float) -> None:
        self.length, self.facts, self.memory, self.steps = length, facts, None, StepBook()
        self.minute = 0
        self.answer: Answer = Unknown("")
        self.more: dict[str, float] = {}
        self.logged: dict[str, float] = {}

    def view(self, now: float) -> View:
        length = self.length(now - T0)
        told = {
            "generator_requests_running": 40.0,
            "kv_cache_capacity_tokens": CAPACITY,
            "kv_cache_usage_ratio": 40 * length / CAPACITY,
            **self.more,
        }
        gauges = {}
        for metric, value in told.items():
            one = Gauge("e0", metric, (), carry=15.0)
            one.add(now, value)
            gauges[metric] = [one]
        return View(now, "async", "running", self.facts, gauges, self.steps)

    def play(self, minutes: int) -> Answer:
        for _ in range(minutes):
            self.minute += 1
            now = T0 + 60 * self.minute
            if self.minute % 5 == 0:
                told = {"trainer_step_seconds": 300.0, **self.logged}
                values = {(metric, ()): value for metric, value in told.items()}
                self.steps.put("trainer", 0, self.minute // 5, now, values)
            self.ask(now)
        return self.answer

    def ask(self, now: float) -> Answer:
        assert kv_concurrency_limit_forecast_seconds.remember is not None
        self.memory, self.answer = kv_concurrency_limit_forecast_seconds.remember(self.memory, self.view(now))
        self.memory = json.loads(json.dumps(self.memory))
        return self.answer


def bounds(answer: Answer) -> dict[str, float]:
    assert isinstance(answer, (list, tuple)), answer
    return {dict(value.labels)["bound"]: value.value for value in answer}


def growing(seconds: float) -> float:
    """10,000 tokens, and one more every second: 3,600 an hour."""
    return 10_000 + seconds


def wobbling(seconds: float) -> float:
    """The same, up and down by 900 at most, another step every five minutes."""
    return growing(seconds) + 300 * (seconds // 300 * 3 % 7 - 3)


def test_it_is_crossed_when_a_sequence_is_as_long_as_the_cache_by_those_wanted() -> None:
    fleet = Fleet(growing, max_in_flight=50.0)
    answer = fleet.play(90)
    # A million tokens hold 50 sequences of 20,000. They are at 15,400 after 90 minutes and grow by one a second.
    assert bounds(answer) == pytest.approx({"low": 4600.0, "mid": 4600.0, "high": 4600.0}, rel=0.01)
    why = answer[0].why  # type: ignore[index]
    assert why == (
        "at 20000 tokens per sequence (15400 now, +3600 per hour), against 50 rollouts in flight by configuration: "
        "about 15 steps"
    )


def test_the_interval_is_that_of_the_slope() -> None:
    found = bounds(Fleet(wobbling, max_in_flight=50.0).play(90))
    assert 3500 < found["low"] < found["mid"] < found["high"] < 7000
    assert found["mid"] == pytest.approx(4600, rel=0.1)


def test_crossed_already() -> None:
    fleet = Fleet(growing, max_in_flight=80.0)
    answer = fleet.play(60)
    # At 13,600 tokens 74 fit.
    assert bounds(answer) == {"low": 0.0, "mid": 0.0, "high": 0.0}
    assert answer[0].why == "already crossed: 74 requests fit, against 80 rollouts in flight by configuration"  # type: ignore[index]


def test_the_engines_own_limit_may_be_crossed_whatever_the_length() -> None:
    fleet = Fleet(lambda _: 10_000.0, max_in_flight=50.0, max_num_seqs=48.0)
    assert bounds(fleet.play(1)) == {"low": 0.0, "mid": 0.0, "high": 0.0}


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (lambda _: 12_000.0, "the length of running sequences has no trend: +0.0% to +0.0% per hour"),
        (lambda seconds: 15_000 - seconds, "running sequences become shorter: -"),
    ],
)
def test_without_growth_there_is_no_forecast(length: Callable[[float], float], words: str) -> None:
    answer = Fleet(length, max_in_flight=60.0).play(90)
    assert isinstance(answer, Unknown) and answer.why.startswith(words)


def test_noise_is_no_trend() -> None:
    def noise(seconds: float) -> float:
        return 12_000 + 500 * ((seconds // 300 * 7) % 11 - 5)

    answer = Fleet(noise, max_in_flight=50.0).play(180)
    assert isinstance(answer, Unknown) and "has no trend" in answer.why


def test_an_hour_is_needed() -> None:
    fleet = Fleet(growing, max_in_flight=50.0)
    assert fleet.play(5 * FEWEST - 1) == Unknown("11 of the 12 points of 5 minutes needed so far; no action needed")
    assert bounds(fleet.play(10))


def test_nearly_empty_engines_have_no_ceiling_and_add_no_point() -> None:
    fleet = Fleet(lambda _: 1000.0, max_in_flight=50.0)  # 4 % of the cache
    answer = fleet.play(30)
    assert isinstance(answer, Unknown) and answer.why.startswith("less than 5% of the KV cache is in use")
    assert fleet.memory is None


def test_who_says_what_is_to_be_in_flight() -> None:
    fleet = Fleet(growing)
    answer = fleet.play(90)
    assert answer[0].why.endswith("against 40 requests running and waiting now: about 32 steps")  # type: ignore[index]
    fleet.more = {"in_flight_capacity_rollouts": 50.0}
    fleet.answer = fleet.ask(T0 + 60 * 90 + 1)
    assert "50 rollouts in flight by the orchestrator's cap" in fleet.answer[0].why  # type: ignore[index]
    fleet.facts["max_in_flight"] = -1.0  # TRL's "auto" is no number
    assert "by the orchestrator's cap" in fleet.ask(T0 + 60 * 90 + 2)[0].why  # type: ignore[index]


def test_a_rollout_that_runs_tools_half_the_time_is_half_a_request() -> None:
    fleet = Fleet(growing, max_in_flight=100.0)
    fleet.logged = {"rollout_model_seconds_mean": 60.0, "rollout_seconds_mean": 120.0}
    answer = fleet.play(90)
    assert bounds(answer)["mid"] == pytest.approx(4600.0, rel=0.01)
    assert "100 rollouts in flight by configuration, 50% of their time generating" in answer[0].why  # type: ignore[index]


def test_a_restart_at_any_tick_changes_no_number_and_asking_twice_adds_nothing() -> None:
    # `ask` writes the memory out and reads it again at every tick; here it is asked twice, too.
    once, twice = Fleet(wobbling, max_in_flight=50.0), Fleet(wobbling, max_in_flight=50.0)
    once.play(90)
    for _ in range(90):
        twice.play(1)
        twice.ask(T0 + 60 * twice.minute)
    assert once.answer == twice.answer and once.memory == twice.memory


def test_points_are_whole_steps_and_bounded() -> None:
    lengths = Lengths()
    for tick in range(100_000):
        lengths.add(T0 + 5 * tick, tick // 200, 10_000.0)  # steps of 1,000 s
    assert len(lengths.points) == MOST
    times = [at for at, _ in lengths.points]
    assert {round(later - at) for at, later in pairwise(times)} == {1000}
    assert {length for _, length in lengths.points} == {10_000.0}
