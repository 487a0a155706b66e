"""Values that nobody can mean: refused at the door by name, and no end of a run that holds one already."""

import logging
from typing import Any

import msgspec
import pytest

from collectors.model import Histogram, Reading, Rollout, Sample, Target, Turn
from server import signals
from server.derive.deriver import Deriver
from server.ingest.readings import without_implausible
from server.signals.model import Signal, Unknown, Value, View
from server.store import Store
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page

OTHER = Target("engine-1", "run", "vllm", "generator", url="http://127.0.0.1:2")


def show(run: Bench, running: float, first: int, last: int) -> None:
    """Two engines alike every 5 s, 100 tokens a page each."""
    for at in range(first, last + 1, 5):
        for target in (ENGINE, OTHER):
            run.commit(target, page(running, 20.0 * at), T0 + at)
        run.advance(T0 + at)


def test_a_huge_value_is_refused_and_the_run_goes_on(store: Store) -> None:
    """Two engines with 10^308 requests each: their sum is no number. What else they tell counts on."""
    with bench(store) as run:
        show(run, 1e308, 0, 20)
        assert run.value('generator_requests_now{state="waiting"}') == 0.0
        named = {one.name for one in run.reader.status("run").signals.values()}
        assert 'generator_requests_now{state="running"}' not in named
        assert run.value("generator_tokens_per_second") == 40.0  # 2 engines x 400 tokens / 20 s
        row = dict(store.runs.targets("run"))[next(n for n, t in store.runs.targets("run") if t.name == "engine-0")]
        assert row.dropped == 5
        assert row.error == "dropped 1: generator_requests_running 1e+308: requests cannot be above 1e+15"
        # Only that value is lost; the answer counts as whole.
        assert run.value('trusted_targets_ratio{actor="generator"}') == 1.0
        show(run, 10.0, 25, 30)
        assert run.value('generator_requests_now{state="running"}') == 20.0


def test_a_store_that_holds_a_huge_value_is_taken_up_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written before it was refused: samples of the window, a step, a counter's total."""
    with monkeypatch.context() as before:
        before.setattr("server.ingest.readings.without_implausible", lambda reading, now: reading)
        with bench(store) as run:
            show(run, 10.0, 0, 10)
            for target in (ENGINE, OTHER):
                run.commit_only(target, page(1e308, 1e308), T0 + 15)
            steps = [(1, 1e308), (2, 1.0), (3, 2.0), (4, 3.0)]
            rows = tuple(Sample("reward_mean", value, ts=T0 + 10 + n, step=n, axis="trainer") for n, value in steps)
            run.commit_only(TRAINER, Reading(samples=rows), T0 + 15)
    with bench(store) as run:
        run.advance(T0 + 15)
        show(run, 10.0, 20, 30)
        assert run.value('generator_requests_now{state="running"}') == 20.0
        assert run.value("generator_tokens_per_second") == 40.0  # 2 x (600 - 0) / 30 s
        assert run.value("generator_generated_tokens_total") == 1200.0
        assert run.value('reward{stat="mean"}') == 2.0  # of the three that can be meant


def test_a_total_beyond_all_counts_begins_anew() -> None:
    deriver = Deriver(signals.load(), lambda _: 15.0)
    deriver.sample(0.0, "e", "generator_tokens_total", (), 0.0)
    deriver.sample(5.0, "e", "generator_tokens_total", (), 7.0)
    version, text = deriver.states()["generator_generated_tokens_total"]
    again = Deriver(signals.load(), lambda _: 15.0)
    again.restore({"generator_generated_tokens_total": (version, text.replace("7.0", "1e+300"))})
    again.sample(10.0, "e", "generator_tokens_total", (), 20.0)
    again.sample(15.0, "e", "generator_tokens_total", (), 25.0)
    assert dict(again.counter_values())["generator_generated_tokens_total"] == Value(5.0)


SOUND = (
    ("kv_cache_usage_ratio", 1.02),  # rounding of the source
    ("generator_requests_running", 0.0),
    ("generator_tokens_total", 1e15),
    ("generator_flops_total", 1e25),  # a year of one GPU is 3 x 10^22
    ("gradient_norm", 3.4e38),  # a 32-bit float may say so
    ("gradient_norm", 0.0),
    ("packing_ratio", 1.203),  # TRL with tree packing, as recorded
    ("loss_mean", -12.5),
    ("reward_mean", -1e6),
    ("mismatch_kl_mean", -0.003),  # an estimate
    ("entropy_mean", -1.0),
    ("reference_kl_mean", -0.1),
    ("policy_version", -1.0),  # before the first
    ("staleness_versions_mean", -1.0),
    ("sandbox_credit_usd", -4.0),
    ("gpu_temperature_celsius", -3.0),
)
BROKEN = (
    ("kv_cache_usage_ratio", 1.7, "kv_cache_usage_ratio 1.7: ratio cannot be above 1.05"),
    ("kv_cache_usage_ratio", -1.0, "kv_cache_usage_ratio -1: ratio cannot be below 0"),
    ("generator_requests_running", -5.0, "generator_requests_running -5: requests cannot be below 0"),
    ("generator_tokens_total", 1e300, "generator_tokens_total 1e+300: tokens cannot be above 1e+15"),
    ("trainer_step_seconds", -0.5, "trainer_step_seconds -0.5: seconds cannot be below 0"),
    ("trainer_step_seconds", 1.8e18, "trainer_step_seconds 1.8e+18: seconds cannot be above 1e+15"),  # nanoseconds
    ("gradient_norm", 1e39, "gradient_norm 1e+39: it cannot be above 3.5e+38"),
    ("solve_ratio", 62.0, "solve_ratio 62: ratio cannot be above 1.05"),  # percent
)


@pytest.mark.parametrize(("metric", "value"), SOUND)
def test_a_value_that_may_be_is_kept(metric: str, value: float) -> None:
    reading = Reading(samples=(Sample(metric, value),))
    assert without_implausible(reading, T0) is reading


@pytest.mark.parametrize(("metric", "value", "why"), BROKEN)
def test_a_value_that_cannot_be_is_left_out_by_name(metric: str, value: float, why: str) -> None:
    good = Sample("generator_requests_waiting", 3.0)
    found = without_implausible(Reading(samples=(good, Sample(metric, value)), dropped=2), T0)
    assert (found.samples, found.dropped, found.why_dropped) == ((good,), 3, why)


@pytest.mark.parametrize(
    ("more", "error", "share"),
    [
        ({}, "dropped 1: solve_ratio 62: ratio cannot be above 1.05", 1.0),
        # Broken lines are lost beside the value: what else they held is not known.
        ({"dropped": 2, "why_dropped": "no JSON"}, "dropped 3: no JSON", 0.0),
        ({"partial": "cut at 64 MB"}, "dropped 1: solve_ratio 62: ratio cannot be above 1.05; cut at 64 MB", 0.0),
    ],
)
def test_a_target_is_distrusted_only_for_what_else_is_missing(
    store: Store, more: dict[str, Any], error: str, share: float
) -> None:
    samples = (Sample("solve_ratio", 62.0, step=1, axis="trainer"), Sample("reward_mean", 1.0, step=1, axis="trainer"))
    with bench(store) as run:
        run.commit(TRAINER, Reading(samples=samples, **more), T0)
        run.advance(T0 + 5)
        assert [row.error for _, row in store.runs.targets("run")] == [error]
        assert run.value('trusted_targets_ratio{actor="trainer"}') == share


def test_a_histogram_beyond_all_counts_is_left_out() -> None:
    good = Histogram("time_to_first_token_seconds", (1.0,), (3.0, 4.0), 5.0)
    many, long = (0.0, 1e300), 1e308
    huge = (Histogram("e2e_request_seconds", (1.0,), many, 5.0), Histogram("e2e_request_seconds", (), (1.0,), long))
    found = without_implausible(Reading(histograms=(good, *huge)), T0)
    assert found.histograms == (good,) and found.dropped == 2
    assert found.why_dropped == "e2e_request_seconds: 1e+300 observed"


@pytest.mark.parametrize(
    ("more", "name", "most"),
    [
        ({"response_tokens": 2**53 - 1}, "response_tokens", 10**9),
        ({"prompt_tokens": 10**9 + 1}, "prompt_tokens", 10**9),
        ({"loss_tokens": 10**9 + 1}, "loss_tokens", 10**9),
        ({"tool_calls": 10**7 + 1}, "tool_calls", 10**7),
        ({"turn_count": 10**7 + 1}, "turns", 10**7),
        ({"turns": (Turn(), Turn(tool_calls=10**7 + 1))}, "turns.tool_calls", 10**7),
        ({"token_versions": ((1, 10**9 + 1),)}, "token_versions: loss tokens", 10**9),
    ],
)
def test_a_rollout_that_counts_beyond_all_is_left_out_by_name(more: dict[str, Any], name: str, most: int) -> None:
    good = Rollout("good", response_tokens=10**9, tool_calls=10**7)
    found = without_implausible(Reading(rollouts=(good, Rollout("bad", **more))), T0)
    assert (found.rollouts, found.dropped) == ((good,), 1)
    assert found.why_dropped == f"{name} must be a whole number up to {most}"


def _signal(name: str, answer: object) -> Signal:
    def compute(view: View) -> list[Value]:
        if isinstance(answer, Exception):
            raise answer
        return [Value(float(answer))]  # type: ignore[arg-type]

    return Signal(name, name, "", "generator", "", (), "tick", compute, "")


def test_a_signal_that_fails_is_unknown_once_in_the_log_and_its_neighbours_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    items = [_signal("bad", ZeroDivisionError("division by zero")), _signal("huge", float("inf")), _signal("good", 3.0)]
    with caplog.at_level(logging.ERROR):
        deriver = Deriver(items, lambda _: 15.0)
        found = [[answer for _, _, answer in deriver.tick(T0 + at)] for at in (0, 5)]
    assert (
        found[0]
        == found[1]
        == [
            Unknown("bad could not be computed: ZeroDivisionError"),
            Unknown("huge could not be computed: no finite number"),
            [Value(3.0)],
        ]
    )
    assert [record.message for record in caplog.records] == [
        "signal bad could not be computed: division by zero",
        "signal huge could not be computed: no finite number",
    ]


def test_texts_that_no_database_takes_are_replaced_before_they_are_used(store: Store) -> None:
    """Half a surrogate pair and NUL in labels, facts and names: the API's JSON could not carry the former."""
    bad, kept = "a\ud800\0b", "a?b"
    reading = Reading(
        samples=(Sample("generator_requests_running", 2.0, (("engine", bad),)),),
        facts={"framework": bad, "x": bad},
        unmapped={bad: 3},
        dropped=1,
        why_dropped=bad,
        samples_scraped=1,
    )
    with bench(store) as run:
        run.commit(ENGINE, reading, T0)
        run.advance(T0 + 5, live=True)
        assert store.runs.facts("run")["x"] == kept and run.reader.runs.all()[0].framework == kept
        assert {key.labels for _, key in store.series.listed("run", ENGINE.name) if key.labels} == {(("engine", kept),)}
        assert store.runs.targets("run")[0][1].unmapped == {kept: 3}
        assert kept.encode() in msgspec.json.encode(run.reader.status("run"))
