"""Drift as signals: which points are taken, by environment, once each, whatever the order and the lives."""

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from server.rollouts.window import Note, RolloutBook, _Version
from server.signals import drift
from server.signals.drift import LATE_STEPS, MOST_ENVIRONMENTS, announced
from server.signals.model import Answer, Signal, Unknown, Value, View, memory_json
from server.signals.window import StepBook
from tests.signals.support import NOW, gauge, view
from tests.signals.test_drift import NEAR, flat

LENGTH, CUT = "response_tokens_mean", "truncation_ratio"
T0 = 900_000.0


class Run:
    """A run whose steps come one by one, each asked for as the driver does."""

    def __init__(self, signal: Signal = drift.response_length_drift_ratio) -> None:
        self.signal, self.steps, self.life = signal, StepBook(), 0
        self.memory: Any = None  # as after a restart with every step
        self.live: Any = None  # as in one process
        self.answer: Answer = Unknown("")

    def step(self, number: int, **values: float) -> Answer:
        told = {(name, ()): value for name, value in values.items()}
        ts = T0 + 60 * number + 100_000 * self.life
        self.steps.put("trainer", self.life, number, ts, told)
        return self.ask(ts)

    def ask(self, now: float, **more: Any) -> Answer:
        assert self.signal.remember is not None
        seen = View(now, "async", "running", {}, steps=self.steps, **more)
        self.memory, self.answer = self.signal.remember(self.memory, seen)
        self.memory = json.loads(memory_json(self.memory))
        seen = View(now, "async", "running", {}, steps=self.steps, **more)
        self.live, answer = self.signal.remember(self.live, seen)
        assert repr(answer) == repr(self.answer)
        assert json.loads(memory_json(self.live)) == self.memory
        return self.answer

    def play(self, values: Iterable[float], first: int = 1, name: str = LENGTH, **more: float) -> Answer:
        for number, value in enumerate(values, first):
            self.step(number, **{name: value, **more})
        return self.answer


def one(answer: Answer) -> Value:
    assert isinstance(answer, (list, tuple)), answer
    (value,) = answer
    return value


def test_first_it_waits_for_its_baseline_and_says_how_long() -> None:
    run = Run()
    assert run.play(flat(34)) == Unknown("34 of the 35 steps needed so far; no action needed")
    value = one(run.step(35, **{LENGTH: 20.0}))
    assert value.value == pytest.approx(1.0, abs=0.01) and value.why.startswith("no change against 19.97 ")
    assert value.why.endswith("over steps 6 to 35")


def test_the_factor_and_since_when() -> None:
    run = Run()
    run.play([*flat(63), *flat(20, 50.0)])
    value = one(run.answer)
    assert value.value == pytest.approx(2.5, rel=0.02) and value.labels == ()
    since = int(value.why.split("since step ")[1].split(",")[0])
    assert value.why.startswith("x2.5 since step ") and abs(since - 64) <= NEAR


def test_nobody_logs_it_and_nobody_records_it() -> None:
    run = Run()
    assert run.play([30.0] * 40, name="trainer_step_seconds") == Unknown(drift.response_length_drift_ratio.hint)


def test_a_cap_hides_drift_and_it_says_so() -> None:
    run = Run()
    run.play(flat(60), **{CUT: 0.02})
    run.play(flat(20), first=61, **{CUT: 0.34})
    assert one(run.answer).why.endswith(
        "; 34% are truncated at the cap, 2% in the baseline: the cap hides how much longer they would be"
    )


def test_a_drift_is_told_with_what_is_cut_and_turns_have_no_cap() -> None:
    run = Run()
    run.play(flat(63), **{CUT: 0.02})
    run.play(flat(20, 40.0), first=64, **{CUT: 0.34})
    assert one(run.answer).why.endswith("; 34% are truncated at the cap, 2% in the baseline")
    calls = Run(drift.tool_calls_drift_ratio)
    calls.play(flat(60), name="tool_calls_mean", **{CUT: 0.02})
    calls.play(flat(20), first=61, name="tool_calls_mean", **{CUT: 0.34})
    assert "cut" not in one(calls.answer).why


# ---- each step once


def _told_twice(run: Run, rows: Sequence[tuple[int, float]]) -> Answer:
    for number, value in rows:
        run.step(number, **{LENGTH: value})
        run.ask(run.steps.newest_of_all().ts + 30)  # type: ignore[union-attr]
    return run.answer


def test_asked_again_it_adds_nothing() -> None:
    rows = list(enumerate([*flat(63), *flat(20, 40.0)], 1))
    twice, once = Run(), Run()
    assert _told_twice(twice, rows) == once.play(value for _, value in rows)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_late_rows_changes_no_number(seed: int) -> None:
    rng = random.Random(seed)
    rows = list(enumerate([*flat(63), *flat(30, 40.0)], 1))
    late = sorted(rows, key=lambda row: row[0] + rng.uniform(0, LATE_STEPS - 1))
    assert late != rows
    mixed, ordered = Run(), Run()
    for number, value in late:
        mixed.step(number, **{LENGTH: value})
    ordered.play(value for _, value in rows)
    mixed.ask(NOW), ordered.ask(NOW)
    assert mixed.answer == ordered.answer and mixed.memory == ordered.memory


def test_a_resumed_run_counts_repeated_steps_once_and_keeps_its_baseline() -> None:
    run = Run()
    run.play(flat(70))
    base = one(run.answer).why
    run.life, run.steps = 1, StepBook()
    run.play(flat(30, 40.0), first=64)
    value = one(run.answer)
    # As of a run that was never interrupted: 63 flat steps, then 30 of twice the length.
    whole = Run()
    whole.play([*flat(63), *flat(30, 40.0)])
    assert value == one(whole.answer)
    assert value.value == pytest.approx(2.0, rel=0.02)
    assert base.endswith("steps 6 to 35") and value.why.endswith("steps 6 to 35")


def test_one_that_was_resumed_far_back_keeps_its_baseline_too() -> None:
    run = Run()
    run.play([*flat(63), *flat(60, 40.0)])
    run.life, run.steps = 1, StepBook()
    assert one(run.play(flat(30), first=50)).value == pytest.approx(1.0, abs=0.02)
    assert one(run.play(flat(30, 40.0), first=80)).value == pytest.approx(2.0, rel=0.02)


def test_a_life_without_the_log_does_not_begin_anew() -> None:
    run = Run()
    run.play(flat(63))
    before = run.memory
    run.life, run.steps = 1, StepBook()
    run.play([30.0] * 3, first=64, name="trainer_step_seconds")
    assert run.memory == before and one(run.answer).value == pytest.approx(1.0, abs=0.01)


# ---- records


def _book(lengths: Mapping[str, Sequence[float | None]], per_version: int = 2) -> RolloutBook:
    """Versions 1.. that consumed so many rollouts of each environment, the lengths 1 apart."""
    book = RolloutBook()
    book.met = book.consumption_told = True
    for name, values in lengths.items():
        for version, value in enumerate(values, 1):
            if value is None:
                continue
            place = book._versions.setdefault((0, version), _Version(counted=True))
            place.last = T0 + 60 * version
            for member in range(per_version):
                place.slot.put((f"{name}{version}/{member}", 0), _note(name, value + member - (per_version - 1) / 2))
    return book


def _note(environment: str, tokens: float) -> Note:
    return Note(
        T0, None, "trained", True, environment, "", None, False, int(tokens), None, None, None, None, None, None, ""
    )


def _records(run: Run, lengths: Mapping[str, Sequence[float | None]]) -> Answer:
    """Asked after each version, with the last twelve of them in the book."""
    count = max(map(len, lengths.values()))
    for upto in range(1, count + 1):
        first = max(0, upto - 12)
        book = _book({name: values[:upto] for name, values in lengths.items()})
        for place in [one for one in book._versions if one[1] <= first]:
            del book._versions[place]
        run.ask(T0 + 60 * upto, rollouts=book)
    return run.answer


def test_records_answer_by_environment_and_the_newest_version_may_still_grow() -> None:
    run = Run()
    swe = [2000.0 + value for value in flat(63)] + [5000.0] * 21
    _records(run, {"swe": swe, "math": [1000.0 + value for value in flat(84)]})
    assert isinstance(run.answer, list)
    found = {dict(value.labels)["environment"]: value.value for value in run.answer}
    assert found["swe"] == pytest.approx(5000 / 2020, rel=0.01) and found["math"] == pytest.approx(1.0, abs=0.01)
    newest = run.memory["swe"][3][-1]
    assert newest[0] == 83  # 84 is not over


def test_records_that_name_no_environment_are_the_run() -> None:
    run = Run()
    value = one(_records(run, {"": [2000.0] * 63 + [3000.0] * 21}))
    assert value.labels == () and value.value == pytest.approx(1.5, rel=0.001)


def test_the_log_speaks_for_the_run_where_no_environment_is_named() -> None:
    run = Run()
    run.play(flat(63))
    _records(run, {"": [9000.0] * 20})
    assert one(run.answer).value == pytest.approx(1.0, abs=0.01)


def test_records_that_begin_late_do_not_hide_the_drift_that_the_log_has_seen() -> None:
    """The log has 20 tokens over its first steps and 50 from step 64 on; records begin at version 70."""
    run = Run()
    run.play([*flat(63), *flat(60, 50.0)])
    late = one(_records(run, {"math": [*[None] * 69, *flat(60, 50.0)]}))
    assert late.labels == () and late.value == pytest.approx(2.5, rel=0.02)
    # Records of the whole run replace the log, which knows no environments.
    run = Run()
    run.play([*flat(63), *flat(60, 50.0)])
    assert dict(one(_records(run, {"math": [*flat(63), *flat(60, 50.0)]})).labels) == {"environment": "math"}


def test_environments_are_bounded() -> None:
    run = Run()
    _records(run, {f"env-{n}": [1000.0] * 3 for n in range(40)})
    assert len(run.memory) == MOST_ENVIRONMENTS + 1


# ---- prefill to decode


def test_prefill_to_decode_as_the_trainer_logs_both() -> None:
    run = Run(drift.prefill_decode_drift_ratio)
    for number in range(1, 64):
        run.step(number, prompt_tokens_mean=4000.0, response_tokens_mean=1000.0)
    for number in range(64, 84):
        run.step(number, prompt_tokens_mean=9000.0, response_tokens_mean=1000.0)
    assert one(run.answer).value == 2.25


def _engines(run: Run, number: int, prompt: float, every: float = 400.0) -> Answer:
    """A step whose engines read ``prompt`` tokens for each one generated, over its last five minutes."""
    ts = T0 + every * number
    run.steps.put("trainer", 0, number, ts, {("trainer_step_seconds", ()): every})
    series = {
        "generator_prompt_tokens_total": [gauge("p", *[prompt * 10 * n for n in range(61)], age=NOW - ts)],
        "generator_tokens_total": [gauge("t", *[10.0 * n for n in range(61)], age=NOW - ts)],
    }
    return run.ask(ts, gauges=series)


def test_prefill_to_decode_as_the_engines_count_it_at_the_steps() -> None:
    run = Run(drift.prefill_decode_drift_ratio)
    for number in range(1, 64):
        _engines(run, number, 4.0)
    assert one(run.answer).value == 1.0
    for number in range(64, 84):
        _engines(run, number, 10.0)
    assert one(run.answer).value == 2.5


def test_steps_that_share_their_five_minutes_are_one_point() -> None:
    run = Run(drift.prefill_decode_drift_ratio)
    for number in range(1, 37):
        _engines(run, number, 4.0, every=100.0)
    assert run.answer == Unknown("12 of the 35 steps needed so far; no action needed")


# ---- what a chart and the verdict need


def test_since_which_step_and_how_fast() -> None:
    since, slope = Run(drift.drift_since_step), Run(drift.drift_slope_ratio)
    ramp = [20 + 0.31 * number for number in range(1, 101)]
    for run in (since, slope):
        for number, value in enumerate([*flat(60), *ramp], 1):
            run.step(number, **{LENGTH: 500.0, "tool_calls_mean": value})
    found = {dict(value.labels)["of"]: value for value in since.answer}  # type: ignore[union-attr]
    assert found.keys() == {"response_length", "tool_calls"}
    assert math.isnan(found["response_length"].value) and found["response_length"].why.startswith("no change")
    assert abs(found["tool_calls"].value - 61) <= 2 * NEAR
    slopes = {dict(value.labels)["of"]: value for value in slope.answer}  # type: ignore[union-attr]
    # 0.31 a step, of 20.
    assert slopes["tool_calls"].value == pytest.approx(0.0155, rel=0.01)
    assert slopes["response_length"].value == 0.0 and slopes["response_length"].why.endswith(": no trend")


def test_a_change_is_announced_once_with_its_place() -> None:
    run = Run(drift.drift_since_step)
    run.play([*flat(63), *flat(60, 40.0)])
    (told,) = announced(run.memory)
    assert abs(told.step - 64) <= NEAR and told.ts == T0 + 60 * told.step
    assert (told.of, told.environment, told.direction) == ("response_length", "", 1)
    assert told.message == f"response length x2 from step {told.step} on"
    assert announced(None) == []


def test_nothing_is_told_at_all() -> None:
    found = drift.drift_since_step.compute(view())
    assert found == Unknown(drift.NO_BEHAVIOUR)
