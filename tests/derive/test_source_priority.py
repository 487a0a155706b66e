"""Several sources of one number: whose word counts, and what is said when they cannot both be right."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import collectors
from collectors.model import Collector, Reading, Sample, Target
from server.derive.source_priority import MAX_DISPUTES, SourcePriority, differ
from server.signals.window import Gauge, Step, StepBook, StepKey
from server.store import Store
from tests.driven_run import T0, Bench, bench

TB, CONSOLE, EPISODES = (
    Target(name, "run", name, "trainer", path="/nowhere") for name in ("tb", "console", "episodes")
)
ENGINE = Target("engine-0", "run", "vllm", "generator", url="http://127.0.0.1:1")
OTHER_ENGINE = structs.replace(ENGINE, name="engine-1")
SECONDS, SAMPLES = "trainer_step_seconds", "trainer_samples"


def known() -> dict[str, Collector]:
    """Three trainers' collectors: one works its step time out, one counts records."""
    trl = collectors.load()["trl"]
    return {
        **collectors.load(),
        "tb": replace(trl, name="tb", gives={(SECONDS, ()): "native", (SAMPLES, ()): "derived"}),
        "console": replace(trl, name="console", gives={(SECONDS, ()): "native", (SAMPLES, ()): "native"}),
        "episodes": replace(trl, name="episodes", gives={}, records=True),
    }


def trust(*targets: Target) -> SourcePriority:
    return SourcePriority.of(targets or (TB, CONSOLE, EPISODES), known())


def tell(
    book: StepBook, by: SourcePriority, target: str, number: int, values: Mapping[str, float], life: int = 0
) -> None:
    """As the deriver does it."""
    keyed: dict[StepKey, float] = {(metric, ()): value for metric, value in values.items()}
    step = Step("trainer", life, number, T0 + number, keyed, dict.fromkeys(keyed, target))
    told = by.counted(book.get("trainer", life, number), step)
    book.put("trainer", life, number, T0 + number, told).sources.update(dict.fromkeys(told, target))


def value(book: StepBook, number: int, metric: str) -> float | None:
    step = book.get("trainer", 0, number)
    return step.get(metric) if step is not None else None


@pytest.mark.parametrize("order", [("tb", "console", "episodes"), ("episodes", "console", "tb")])
def test_records_before_native_before_derived_before_strangers(order: tuple[str, ...]) -> None:
    book, by = StepBook(), trust()
    words: dict[str, dict[str, float]] = {
        "tb": {SECONDS: 10.0, SAMPLES: 100.0},
        "console": {SECONDS: 20.0, SAMPLES: 200.0},
        "episodes": {},
    }
    for target in order:
        tell(book, by, target, 7, words[target])
    # Both have the step under a key of their own: the one attached first; the samples only the console logs.
    assert (value(book, 7, SECONDS), value(book, 7, SAMPLES)) == (10.0, 200.0)
    tell(book, by, "nobody attached it", 7, {SECONDS: 99.0, SAMPLES: 999.0})
    assert (value(book, 7, SECONDS), value(book, 7, SAMPLES)) == (10.0, 200.0)
    tell(book, by, "episodes", 7, {SECONDS: 30.0, SAMPLES: 300.0})
    assert (value(book, 7, SECONDS), value(book, 7, SAMPLES)) == (30.0, 300.0)


def test_a_source_may_correct_itself() -> None:
    book, by = StepBook(), trust()
    tell(book, by, "tb", 7, {SECONDS: 10.0})
    tell(book, by, "tb", 7, {SECONDS: 40.0})
    assert value(book, 7, SECONDS) == 40.0
    assert by.complaint("tb") == ""


def test_what_cannot_both_be_right_is_said_of_the_less_believed() -> None:
    book, by = StepBook(), trust()
    tell(book, by, "console", 41, {SECONDS: 12.0})
    tell(book, by, "tb", 41, {SECONDS: 30.0})
    assert by.complaint("console") == "disagrees with tb: trainer_step_seconds 12 against 30 at step 41"
    assert (by.complaint("tb"), by.complaint("episodes")) == ("", "")
    assert value(book, 41, SECONDS) == 30.0


def test_it_is_over_when_they_agree_again_or_ten_steps_later() -> None:
    book, by = StepBook(), trust()
    for number, other in ((1, 15.0), (2, 10.5)):
        tell(book, by, "tb", number, {SECONDS: 10.0})
        tell(book, by, "console", number, {SECONDS: other})
    assert by.complaint("console") == ""
    tell(book, by, "tb", 3, {SECONDS: 10.0})
    tell(book, by, "console", 3, {SECONDS: 15.0})
    for number in range(4, 13):
        tell(book, by, "tb", number, {SECONDS: 10.0})
        assert by.complaint("console").endswith("15 against 10 at step 3")
    tell(book, by, "tb", 13, {SECONDS: 10.0})
    assert by.complaint("console") == ""


def test_a_new_life_begins_without_the_disputes_of_the_old() -> None:
    book, by = StepBook(), trust()
    tell(book, by, "tb", 9, {SECONDS: 10.0})
    tell(book, by, "console", 9, {SECONDS: 15.0})
    tell(book, by, "tb", 5, {SECONDS: 10.0}, life=1)
    assert by.complaint("console") == ""


@pytest.mark.parametrize(
    ("metric", "one", "other", "apart"),
    [
        (SECONDS, 10.0, 12.5, False),  # exactly a fifth of the larger
        (SECONDS, 10.0, 12.6, True),
        (SECONDS, 0.01, 0.05, False),  # both nothing, as far as a step goes
        (SECONDS, 0.0, 0.06, True),
        ("mismatch_kl_mean", 0.0004, 0.0011, False),  # printed with three decimals
        ("mismatch_kl_mean", 0.004, 0.0055, True),
        ("reward_mean", -1.0, 1.0, True),
        ("gradient_nonfinite", 0.0, 1.0, True),
    ],
)
def test_a_fifth_of_the_larger_and_more_than_rounding(metric: str, one: float, other: float, apart: bool) -> None:
    assert (differ(metric, one, other), differ(metric, other, one)) == (apart, apart)


WORDS = st.tuples(st.sampled_from(["tb", "console", "episodes"]), st.integers(0, 20), st.floats(0, 1e6))


@given(st.lists(WORDS, max_size=60))
def test_the_most_believed_word_stands_in_whatever_order_they_come(words: list[tuple[str, int, float]]) -> None:
    book, by = StepBook(), trust()
    said: dict[int, dict[str, float]] = {}
    for target, number, seconds in words:
        tell(book, by, target, number, {SECONDS: seconds})
        said.setdefault(number, {})[target] = seconds
    for number, per_target in said.items():
        best = next(name for name in ("episodes", "tb", "console") if name in per_target)
        assert value(book, number, SECONDS) == per_target[best]


def test_disputes_are_bounded() -> None:
    book, by = StepBook(), trust()
    for number in range(3 * MAX_DISPUTES):
        key = ("reward_component_mean", (("function", f"f{number}"),))
        for target, told in (("tb", 1.0), ("console", 9.0)):
            step = Step("trainer", 0, 1, T0, {key: told}, {key: target})
            counted = by.counted(book.get("trainer", 0, 1), step)
            book.put("trainer", 0, 1, T0, counted).sources.update(dict.fromkeys(counted, target))
    assert by.complaint("console").endswith(f"(and {MAX_DISPUTES - 1} more)")


def gauge(target: str, metric: str, size: float, age: float = 0.0, labels: tuple[tuple[str, str], ...] = ()) -> Gauge:
    made = Gauge(target, metric, labels, carry=15.0)
    made.add(T0 - age, size)
    return made


def test_one_queue_is_one_queue_and_engines_add_up() -> None:
    by = trust(TB, CONSOLE, ENGINE, OTHER_ENGINE)
    queues = [gauge("console", "queue_samples", 7.0), gauge("tb", "queue_samples", 8.0)]
    assert by.counted_gauges("queue_samples", queues, T0) == [queues[1]]
    # The first one fell silent.
    late = [queues[0], gauge("tb", "queue_samples", 8.0, age=60.0)]
    assert by.counted_gauges("queue_samples", late, T0) == [late[0]]
    # All parts of one teller, not the parts of several.
    parts = [gauge("tb", "in_flight_rollouts", 5.0, labels=(("state", state),)) for state in ("generating", "eval")]
    other = gauge("console", "in_flight_rollouts", 5.0, labels=(("state", "generating"),))
    assert by.counted_gauges("in_flight_rollouts", [other, *parts], T0) == parts
    running = [gauge(name, "generator_requests_running", 3.0) for name in ("engine-0", "engine-1")]
    assert by.counted_gauges("generator_requests_running", running, T0) == running
    flying = [gauge(name, "in_flight_rollouts", 3.0) for name in ("engine-0", "engine-1")]
    assert by.counted_gauges("in_flight_rollouts", flying, T0) == flying


# ---- through ingest, store, driver and reader


def rows(values: Mapping[int, float], tokens: float, late: float = 0.0) -> Reading:
    """Steps with their seconds; each trained ``tokens``."""
    samples = []
    for number, seconds in values.items():
        for metric, told in ((SECONDS, seconds), ("trained_tokens", tokens), ("queue_samples", tokens / 100)):
            samples.append(Sample(metric, told, ts=T0 + number + late, step=number, axis="trainer"))
    return Reading(samples=tuple(samples), facts={"framework": "trl", "mode": "async"}, cursor={})


def errors(run: Bench) -> dict[str, str]:
    return {one.target: one.error for one in run.reader.status("run").trust}


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_with_two_logs_that_disagree(store: Store, first: int) -> None:
    """Whichever log is read first: TensorBoard's ten seconds stand, and the console is said to disagree."""
    both = [
        (TB, rows(dict.fromkeys(range(1, 13), 10.0), 1000.0)),
        (CONSOLE, rows(dict.fromkeys(range(1, 13), 30.0), 1000.0, late=0.3)),
    ]
    with bench(store, trust=trust()) as run:
        for target, reading in (both[first], both[1 - first]):
            run.commit(target, reading, T0 + 13)
            run.advance(T0 + 15)
        assert run.value("trainer_step_seconds") == 10.0
        assert run.value("trained_tokens_total") == 12_000.0
        assert run.value("queue_samples_now") == 10.0
        run.commit(CONSOLE, Reading(cursor={}), T0 + 18)
        run.commit(TB, Reading(cursor={}), T0 + 18)
        run.advance(T0 + 20)
        assert errors(run)["console"] == "disagrees with tb: trainer_step_seconds 30 against 10 at step 12"
        assert errors(run)["tb"] == ""
        assert run.value('trusted_targets_ratio{actor="trainer"}') == 0.5
        assert run.reader.status("run").lifecycle == "running"  # nothing was stopped
    # Both logs' words are in the store, so that a restart of ours tells the same.
    with bench(store, trust=trust()) as run:
        run.commit(CONSOLE, Reading(cursor={}), T0 + 23)
        run.advance(T0 + 25)
        assert run.value("trainer_step_seconds") == 10.0
        assert errors(run)["console"] == "disagrees with tb: trainer_step_seconds 30 against 10 at step 12"


def test_two_logs_that_agree_are_trusted(store: Store) -> None:
    with bench(store, trust=trust()) as run:
        run.commit(TB, rows(dict.fromkeys(range(1, 13), 10.0), 1000.0), T0 + 13)
        run.commit(CONSOLE, rows(dict.fromkeys(range(1, 13), 11.0), 1000.0), T0 + 13)
        run.advance(T0 + 15)
        run.commit(CONSOLE, Reading(cursor={}), T0 + 18)
        run.commit(TB, Reading(cursor={}), T0 + 18)
        run.advance(T0 + 20)
        assert set(errors(run).values()) == {""}
        assert run.value('trusted_targets_ratio{actor="trainer"}') == 1.0
