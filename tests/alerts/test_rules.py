"""The state machine: every expectation is a state at an instant, by number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.alerts.model import RESOLVED_SECONDS, Alert, Rule, Table, fingerprint
from server.alerts.rules import REMOVED, VALUE_ROWS, Evaluator
from tests.alerts.support import GAP, T0, OneFrame, Row, frame, frames, labels, rule, states, table, timeline

# Threshold 1, frames 5 s apart. Words: a number, _ a gap, - the series ended, x no source.
# Letters: . none, p pending, F firing, K kept firing, h and H held. Each row says what it shows.
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("for 0 fires at once", {}, "0 2 2 0 2", ". F F . F"),
    ("the threshold itself is not above it", {}, "1 1.01", ". F"),
    ("pending while now - active_at < for, firing at >= for", {"for_seconds": 10}, "2 2 2 2", "p p F F"),
    ("0 < for < interval fires at the next evaluation", {"for_seconds": 1}, "2 2", "p F"),
    ("a for between two evaluations is reached at the later", {"for_seconds": 11}, "2 2 2 2", "p p p F"),
    ("one false evaluation starts `for` again", {"for_seconds": 10}, "2 2 0 2 2 2", "p p . p p F"),
    ("ended is false at once", {"for_seconds": 5}, "2 2 - 2", "p F . p"),
    ("pending that ends never fired", {"for_seconds": 10}, "2 2 -", "p p ."),
    ("keep_firing_for keeps while now - since < keep", {"keep_firing_seconds": 10}, "2 0 0 0", "F K K ."),
    ("true again ends keeping", {"keep_firing_seconds": 10}, "2 0 2 0 0 0", "F K F K K ."),
    ("an ended series is kept too", {"keep_firing_seconds": 10}, "2 - - -", "F K K ."),
    ("keep_firing_for does not keep pending", {"for_seconds": 10, "keep_firing_seconds": 60}, "2 2 0", "p p ."),
    ("hold: a gap resolves nothing, however long", {"no_data_after": 10}, "2 _ _ _ _ _ 2", "F H H H H H F"),
    ("hold: false after the gap resolves", {"no_data_after": 10}, "2 _ _ _ 0", "F H H H ."),
    ("hold: a gap begins nothing", {}, "_ _ 0 _", ". . . ."),
    ("hold: unseen time does not count", {"for_seconds": 10}, "2 2 _ _ 2 2", "p p h h F F"),
    ("hold: three true evaluations, wherever the gap is", {"for_seconds": 10}, "2 _ _ 2 2", "p h h p F"),
    ("hold: pending is dropped after no_data_after", {"for_seconds": 60, "no_data_after": 10}, "2 _ _ _ _ 2",
     "p h h . . p"),
    ("hold: the clock of keeping stands still too", {"keep_firing_seconds": 10}, "2 0 _ _ 0 0", "F K H H K ."),
    ("no source: as a gap for what exists", {"for_seconds": 5}, "2 2 x x 2 x 0", "p F H H F H ."),
    ("no source begins nothing, even under alert", {"no_data": "alert", "no_data_after": 5}, "0 x x x x", ". . . . ."),
    ("ok: false after no_data_after, held before", {"no_data": "ok", "no_data_after": 10}, "2 _ _ _ _", "F H H . ."),
    ("ok: pending as well", {"no_data": "ok", "no_data_after": 10, "for_seconds": 60}, "2 _ _ _", "p h h ."),
    ("ok: keeping begins when silence counts",
     {"no_data": "ok", "no_data_after": 5, "keep_firing_seconds": 10}, "2 _ _ _ _ _", "F H H H . ."),
    ("ok: keeping begins anew when silence counts",
     {"no_data": "ok", "no_data_after": 5, "keep_firing_seconds": 10}, "2 0 _ _ _ _", "F K H H H ."),
    ("alert: true after no_data_after", {"no_data": "alert", "no_data_after": 10}, "0 _ _ _ 0", ". h h H ."),
    ("alert: then `for` applies from there",
     {"no_data": "alert", "no_data_after": 10, "for_seconds": 10}, "0 _ _ _ _ _ 2 0", ". h h h h H F ."),
    ("alert: pending from before counts from there too",
     {"no_data": "alert", "no_data_after": 10, "for_seconds": 10}, "2 _ _ _ _ _", "p h h h h H"),
    ("alert: pending that saw silence count goes on with data",
     {"no_data": "alert", "no_data_after": 5, "for_seconds": 10}, "0 _ _ _ 2", ". h h h F"),
    ("alert: never had a value", {"no_data": "alert", "no_data_after": 5}, "_ _ _ _", ". . . ."),
    ("alert: its first value comes late", {"no_data": "alert", "no_data_after": 5}, "_ 0 _ _", ". . h H"),
    ("alert: a new life needs a value of its own", {"no_data": "alert", "no_data_after": 5}, "0 - _ _ _", ". . . . ."),
    ("alert: what fires goes on", {"no_data": "alert", "no_data_after": 5}, "2 _ _ _ 2", "F H H H F"),
    ("recover: firing until the value is back across it", {"recover": 0.5}, "2 0.8 0.51 0.5 0.8", "F F F . ."),
    ("recover does not hold pending", {"recover": 0.5, "for_seconds": 10}, "2 0.8 2", "p . p"),
    ("recover downwards", {"op": "<", "recover": 2.0}, "0.5 1.5 2 1.5", "F F . ."),
    ("not equal is not true of a gap", {"op": "!="}, "1 _ 2 _ 1", ". . F H ."),
    ("absence: nothing with a value", {"kind": "absence"}, "2 _ x - 0", ". F F F ."),
    ("absence: `for`, and no_data does not apply",
     {"kind": "absence", "for_seconds": 10, "no_data": "ok", "no_data_after": 5}, "x _ - x 1", "p p F F ."),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "given_", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_states(keys: dict[str, Any], given_: str, expected: str) -> None:
    assert timeline(Evaluator([rule(**keys)], "r"), frames(given_)) == expected


def evaluate(rules: Sequence[Rule], *given_: OneFrame) -> tuple[Evaluator, list[Alert]]:
    evaluator = Evaluator(rules, "r")
    found: list[Alert] = []
    for one in given_:
        found = evaluator.evaluate(one)
    return evaluator, found


# ---- times and identity


def test_times_of_an_episode() -> None:
    evaluator = Evaluator([rule(for_seconds=10, keep_firing_seconds=5)], "r")
    for one in frames("2 2 2 0 0"):
        found = evaluator.evaluate(one)
    (alert,) = found
    assert (alert.active_at, alert.fired_at, alert.keep_since, alert.resolved_at) == (T0, T0 + 10, T0 + 15, T0 + 20)
    assert (alert.state, alert.reason) == ("resolved", "the condition is no longer true")


def test_firing_again_is_a_new_episode() -> None:
    evaluator = Evaluator([rule()], "r")
    starts = []
    for one in frames("2 0 2"):
        starts += [alert.active_at for alert in evaluator.evaluate(one) if alert.state == "firing"]
    assert starts == [T0, T0 + 10]


def test_labels_of_an_alert() -> None:
    one = rule("Starved", severity="critical", class_="liveness", labels=(("team", "rl"), ("empty", "")))
    _, (alert,) = evaluate([one], frame(0, {"stat=mean,target=e0": 2}))
    expected = {
        "alertname": "Starved", "class": "liveness", "run": "r", "severity": "critical", "stat": "mean", "target": "e0",
        "team": "rl",
    }  # fmt: skip
    assert alert.labels == tuple(sorted(expected.items()))
    assert alert.series == labels("stat=mean,target=e0")
    assert alert.fingerprint == fingerprint(alert.labels)


def test_a_hold_moves_the_begin_of_a_pending_alert_to_another_row() -> None:
    evaluator = Evaluator([rule(for_seconds=60)], "r")
    for one in frames("2 _ _ 2"):
        found = [(alert.state, alert.active_at - T0) for alert in evaluator.evaluate(one)]
    assert found == [("inactive", 0), ("pending", 10)]


def test_resolved_is_remembered_for_15_minutes() -> None:
    evaluator, _ = evaluate([rule()], frame(0, {"": 2}), frame(5, {"": 0}))
    evaluator.evaluate(frame(5 + RESOLVED_SECONDS - 1, {"": 0}))
    assert [alert.state for alert in evaluator.active] == ["resolved"]
    assert evaluator.evaluate(frame(5 + RESOLVED_SECONDS, {"": 0})) == []
    assert evaluator.active == []


def test_resolved_is_remembered_until_its_labels_fire_again() -> None:
    evaluator = Evaluator([rule(for_seconds=5)], "r")
    seen = []
    for one in frames("2 2 0 2 2"):
        evaluator.evaluate(one)
        seen.append([alert.state for alert in evaluator.active])
    assert seen == [["pending"], ["firing"], ["resolved"], ["pending", "resolved"], ["firing"]]


def test_values_and_annotations_are_updated_in_place() -> None:
    one = rule(annotations={"summary": "$signal is $value"})
    evaluator, first = evaluate([one], frame(0, {"": 2}))
    alert = first[0]
    assert (alert.value, alert.annotations) == (2, {"summary": "x is 2", "evidence": "X: 2, limit above 1"})
    assert evaluator.evaluate(frame(5, {"": 3})) == [alert]
    assert (alert.value, alert.annotations["summary"]) == (3, "x is 3")
    assert evaluator.evaluate(frame(10, {"": 3})) == []


def test_a_kept_alert_shows_the_value_that_was_true() -> None:
    _, (alert,) = evaluate([rule(keep_firing_seconds=60)], frame(0, {"": 2}), frame(5, {"": 0}))
    assert (alert.value, alert.reason) == (2, "the condition is no longer true")


def test_a_hold_says_why_once() -> None:
    evaluator = Evaluator([rule()], "r")
    evaluator.evaluate(frame(0, {"": 2}))
    first = evaluator.evaluate(OneFrame(T0 + 5, {"x": table({"": GAP}, "down for 5 s")}))
    assert [(alert.held_since, alert.reason) for alert in first] == [(T0 + 5, "down for 5 s")]
    assert evaluator.evaluate(OneFrame(T0 + 10, {"x": table({"": GAP}, "down for 10 s")})) == []


def test_replayed_is_what_began_firing_in_history() -> None:
    evaluator = Evaluator([rule(for_seconds=5)], "r")
    evaluator.evaluate(frame(0, {"a=1": 2}, replayed=True))
    evaluator.evaluate(frame(5, {"a=1": 2, "a=2": 2}, replayed=True))
    evaluator.evaluate(frame(10, {"a=1": 2, "a=2": 2}))
    evaluator.evaluate(frame(15, {"a=1": GAP, "a=2": 2}))  # a later change of it, live, does not make it new
    assert {dict(alert.series)["a"]: alert.replayed for alert in evaluator.firing} == {"1": True, "2": False}


# ---- lifecycle and rules that change


@pytest.mark.parametrize("lifecycle", ["starting", "paused", "finished", "crashed"])
def test_outside_its_lifecycle_a_rule_has_no_alerts(lifecycle: str) -> None:
    evaluator = Evaluator([rule(for_seconds=10, keep_firing_seconds=60)], "r")
    for at, row in ((0, {"a=1": 2.0}), (10, {"a=1": 2.0, "a=2": 2.0})):
        evaluator.evaluate(frame(at, row))
    ended = evaluator.evaluate(frame(15, {"a=1": 2.0, "a=2": 2.0}, lifecycle=lifecycle))
    assert sorted((alert.state, alert.reason) for alert in ended) == [
        ("inactive", f"the run is {lifecycle}"), ("resolved", f"the run is {lifecycle}"),
    ]  # fmt: skip
    assert evaluator.evaluate(frame(20, {"a=1": 2.0}, lifecycle=lifecycle)) == []


def test_a_rule_may_name_other_lifecycles() -> None:
    evaluator, _ = evaluate([rule(lifecycle=frozenset({"finished"}))], frame(0, {"": 2}, lifecycle="finished"))
    assert states(evaluator) == {"": "firing"}


@pytest.mark.parametrize("now", [[], [rule("B")], [rule(severity="critical")], [rule(labels=(("a", "b"),))]])
def test_alerts_no_rule_makes_any_more_end(now: list[Rule]) -> None:
    before, _ = evaluate([rule(for_seconds=5)], frame(0, {"a=1": 2}), frame(5, {"a=1": 2, "a=2": 2}))
    after = Evaluator(now, "r")
    after.restore(before.active)
    ended = after.evaluate(frame(10, {}))
    assert sorted((alert.state, alert.reason) for alert in ended) == [("inactive", REMOVED), ("resolved", REMOVED)]
    assert [alert.state for alert in after.active] == ["resolved"]


def test_a_matcher_added_since_ends_what_it_leaves_out() -> None:
    before, _ = evaluate([rule()], frame(0, {"a=1": 2, "a=2": 2}))
    after = Evaluator([rule(match=["a=1"], recover=0.5)], "r")
    after.restore(before.active)
    after.evaluate(frame(5, {"a=1": 0.8, "a=2": 0.8}))
    assert states(after) == {"a=1": "firing"}


def test_two_rules_of_one_name_that_differ_in_severity() -> None:
    pair = [rule(threshold=1), rule(threshold=3, severity="critical")]
    before, _ = evaluate(pair, frame(0, {"": 4}))
    after = Evaluator(pair, "r")
    after.restore(before.active)
    after.evaluate(frame(5, {"": 2}))
    found = {dict(alert.labels)["severity"]: alert.state for alert in after.active}
    assert found == {"critical": "resolved", "warning": "firing"}


# ---- matchers, several series, several conditions


def test_only_matching_series() -> None:
    one = rule(match=["stat=mean", 'target=~"e.*"'])
    evaluator, _ = evaluate([one], frame(0, {"stat=mean,target=e0": 2, "stat=max,target=e1": 2, "stat=mean": 2}))
    assert states(evaluator) == {"stat=mean,target=e0": "firing"}


def test_a_table_of_another_shape_is_read_anew() -> None:
    evaluator, _ = evaluate([rule(match=["a=2"])], frame(0, {"a=1": 0, "a=2": 2}))
    evaluator.evaluate(frame(5, {"a=2": 2, "a=1": 0}))
    assert states(evaluator) == {"a=2": "firing"}
    evaluator.evaluate(frame(10, {"a=1": 2, "a=2": 0}))
    assert states(evaluator) == {}


def two(at: float, x: Row | None, y: Row | None) -> OneFrame:
    found = {name: table(row) for name, row in (("x", x), ("y", y)) if row is not None}
    return OneFrame(T0 + at, found)


ALSO = rule(also=(rule(on="y", recover=0.5).condition,))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ({"": 2}, {"": 2}, {"": "firing"}),
        ({"": 2}, {"": 0}, {}),
        ({"target=e0": 2, "target=e1": 2}, {"target=e0": 2, "target=e1": 0}, {"target=e0": "firing"}),
        ({"target=e0": 2, "target=e1": 2}, {"": 2}, {"target=e0": "firing", "target=e1": "firing"}),
        ({"": 2}, {"target=e0": 0, "target=e1": 2}, {"": "firing"}),
        ({"a=1,target=e0": 2, "a=2,target=e0": 2}, {"a=1,b=9": 2}, {"a=1,target=e0": "firing"}),
        ({"": 2}, {"": GAP}, {}),
        ({"": 2}, {"target=e0": GAP, "target=e1": 2}, {"": "firing"}),
        ({"": 2}, {}, {}),
        ({"": 2}, None, {}),
        ({"": 0}, {"": 2}, {}),
    ],
)
def test_also_needs_a_series_that_agrees(x: Row, y: Row | None, expected: dict[str, str]) -> None:
    evaluator, _ = evaluate([ALSO], two(0, x, y))
    assert states(evaluator) == expected


@pytest.mark.parametrize(
    ("x", "y", "held", "still"),
    [
        (2, {"": GAP}, True, True),
        (2, None, True, True),
        (GAP, {"": 2}, True, True),
        (GAP, {"": GAP}, True, True),
        (2, {"": 0.8}, False, True),  # `recover` of a further condition counts while firing
        (2, {"": 0.5}, False, False),
        (2, {}, False, False),
        (0, {"": GAP}, False, False),  # false and unknown is false
        (GAP, {"": 0}, False, False),
        (0, None, False, False),
    ],
)
def test_also_of_a_firing_alert(x: float, y: Row | None, held: bool, still: bool) -> None:
    evaluator, _ = evaluate([ALSO], two(0, {"": 2}, {"": 2}), two(5, {"": x}, y))
    assert [alert.held_since for alert in evaluator.firing] == ([T0 + 5 if held else None] if still else [])


def test_also_absence() -> None:
    one = rule(also=(rule(on="y", kind="absence").condition,))
    for y, expected in (({"": 1}, {}), ({"": GAP}, {"": "firing"}), ({}, {"": "firing"}), (None, {"": "firing"})):
        evaluator, _ = evaluate([one], two(0, {"": 2}, y))
        assert states(evaluator) == expected


def test_a_dead_target_of_both_conditions_is_no_data() -> None:
    one = replace(ALSO, no_data="alert", no_data_after=5)
    evaluator, _ = evaluate([one], two(0, {"": 0}, {"": 0}), *(two(at, {"": GAP}, {"": GAP}) for at in (5, 10)))
    assert states(evaluator) == {"": "firing"}


def test_a_condition_without_source_begins_nothing() -> None:
    one = replace(ALSO, no_data="alert", no_data_after=5)
    evaluator, _ = evaluate([one], two(0, {"": 0}, {"": 0}), *(two(at, {"": GAP}, None) for at in (5, 10, 15)))
    assert states(evaluator) == {}


def test_absence_has_the_labels_of_its_equality_matchers() -> None:
    one = rule(kind="absence", match=["target=e0", 'stat=~"m.*"', "kind!=vllm"])
    evaluator, _ = evaluate([one], frame(0, {"target=e1,stat=mean": 1}))
    assert states(evaluator) == {"target=e0": "firing"}
    evaluator.evaluate(frame(5, {"target=e0,stat=mean": 0}))
    assert states(evaluator) == {}


# ---- two alerts of the same labels


def test_equal_labels_are_an_error_of_the_rule() -> None:
    evaluator = Evaluator([rule("B", threshold=10), rule(labels=(("target", "all"),))], "r")
    assert evaluator.evaluate(frame(0, {"target=e0": 2, "target=e1": 2})) == []
    assert list(evaluator.errors) == ["A"]
    assert "target=all" in evaluator.errors["A"]
    evaluator.evaluate(frame(5, {"target=e0": 2, "target=e1": 0}))
    assert (states(evaluator), evaluator.errors) == ({"target=e0": "firing"}, {})
    evaluator.evaluate(frame(10, {"target=e0": 2, "target=e1": 2}))
    assert [(alert.series, alert.held_since) for alert in evaluator.active] == [(labels("target=e0"), T0 + 10)]
    assert list(evaluator.errors) == ["A"]
    evaluator.evaluate(frame(15, {"target=e0": 0, "target=e1": 2}))
    assert (states(evaluator), evaluator.errors) == ({"target=e1": "firing"}, {})


# ---- how much is written


def test_values_are_written_by_turns() -> None:
    count = 2 * VALUE_ROWS + 500
    keys = tuple(labels(f"i={i}") for i in range(count))

    def at(n: int) -> OneFrame:
        return OneFrame(T0 + 5 * n, {"x": Table(keys, [2.0 + n] * count, {}, 1)})

    evaluator = Evaluator([rule(annotations={"s": "$raw_value"})], "r")
    assert len(evaluator.evaluate(at(0))) == count
    told = [{alert.series for alert in evaluator.evaluate(at(n))} for n in (1, 2, 3)]
    assert [len(one) for one in told] == [VALUE_ROWS] * 3
    assert set().union(*told) == set(keys)
    assert all(alert.value == 5 for alert in evaluator.firing)


def test_values_of_every_rule_are_written() -> None:
    evaluator = Evaluator([rule("Never", threshold=100), rule("A"), rule("B", annotations={"s": "$raw_value"})], "r")
    evaluator.evaluate(frame(0, {"": 2}))
    found = evaluator.evaluate(frame(5, {"": 3}))
    own = [{"summary": "X of run r: 3, limit above 1", "evidence": "X: 3, limit above 1"}, {"s": "3"}]
    assert [(alert.rule, alert.value, dict(alert.annotations)) for alert in found] == [
        ("A", 3, own[0]), ("B", 3, {**own[0], **own[1]}),
    ]  # fmt: skip


def test_a_change_of_state_is_never_put_off() -> None:
    count = VALUE_ROWS + 10
    keys = tuple(labels(f"i={i}") for i in range(count))
    evaluator = Evaluator([rule()], "r")
    evaluator.evaluate(OneFrame(T0, {"x": Table(keys, [2.0] * count, {}, 1)}))
    found = evaluator.evaluate(OneFrame(T0 + 5, {"x": Table(keys, [3.0] * (count - 5) + [0.0] * 5, {}, 1)}))
    assert sum(alert.state == "resolved" for alert in found) == 5
    assert len(found) == VALUE_ROWS + 5
