"""The state machine under any sequence of values: restarts, gaps and repeats change nothing they must not."""

import copy
import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from server.alerts.model import Alert, Rule
from server.alerts.rules import Evaluator, label_set
from tests.alerts.support import frame, frames, labels, rule, states, timeline

WORDS = st.lists(st.sampled_from(["0", "0.8", "2", "3", "_", "-", "x"]), min_size=1, max_size=30)
RULES = st.builds(
    rule,
    for_seconds=st.sampled_from([0, 3, 5, 10, 17]),
    keep_firing_seconds=st.sampled_from([0, 5, 12]),
    no_data=st.sampled_from(["hold", "alert", "ok"]),
    no_data_after=st.sampled_from([0, 5, 10, 30]),
    recover=st.sampled_from([None, 0.5]),
    annotations=st.just({"s": "$value since $since"}),
)


def rows(found: list[Alert]) -> list[Alert]:
    return [copy.copy(alert) for alert in found]


def stored(known: dict[tuple[str, float], Alert], found: list[Alert]) -> None:
    """What a store keeps of the answers: one row per (fingerprint, active_at)."""
    for alert in found:
        key = (alert.fingerprint, alert.active_at)
        if alert.state == "inactive":
            known.pop(key, None)
        else:
            known[key] = copy.copy(alert)


@settings(max_examples=300, deadline=None)
@given(RULES, WORDS)
def test_the_rows_are_the_state(one: Rule, words: list[str]) -> None:
    """Nothing changes that is not in an answer, and an answer holds nothing that did not change."""
    evaluator, known = Evaluator([one], "r"), {}  # type: ignore[var-annotated]
    for each in frames(" ".join(words)):
        before = dict(known)
        found = rows(evaluator.evaluate(each))
        stored(known, found)
        live = {(alert.fingerprint, alert.active_at): alert for alert in evaluator.active}
        assert live.items() <= known.items()
        assert all(known[key].state == "resolved" for key in known.keys() - live.keys())
        assert not [alert for alert in found if before.get((alert.fingerprint, alert.active_at)) == alert]


@settings(max_examples=300, deadline=None)
@given(RULES, WORDS, st.integers(0, 30))
def test_a_restart_changes_nothing(one: Rule, words: list[str], at: int) -> None:
    evaluator, known = Evaluator([one], "r"), {}  # type: ignore[var-annotated]
    given_ = frames(" ".join(words))
    at = min(at, len(given_))
    for each in given_[:at]:
        stored(known, rows(evaluator.evaluate(each)))
    again = Evaluator([one], "r")
    again.restore(known.values())
    seen = one.no_data != "alert"
    for each, word in zip(given_[at:], words[at:], strict=True):
        seen = seen or word not in ("_", "x")
        if not seen and not states(again):
            return  # a silence that begins right at a restart is one nobody saw begin: it counts after the next value
        assert rows(again.evaluate(each)) == rows(evaluator.evaluate(each))
        assert [copy.copy(a) for a in again.active] == [copy.copy(a) for a in evaluator.active]


@settings(max_examples=200, deadline=None)
@given(RULES, WORDS)
def test_hold_never_resolves_by_silence(one: Rule, words: list[str]) -> None:
    evaluator = Evaluator([replace(one, no_data="hold")], "r")
    for each, word in zip(frames(" ".join(words)), words, strict=True):
        found = evaluator.evaluate(each)
        if word in ("_", "x"):
            assert not [alert for alert in found if alert.state in ("resolved", "firing") and alert.held_since is None]


@settings(max_examples=200, deadline=None)
@given(RULES, WORDS)
def test_the_same_frame_again_changes_nothing(one: Rule, words: list[str]) -> None:
    evaluator = Evaluator([one], "r")
    for each in frames(" ".join(words)):
        evaluator.evaluate(each)
        assert evaluator.evaluate(each) == []


@settings(max_examples=200, deadline=None)
@given(RULES, WORDS)
def test_gaps_taken_out_leave_the_same_firing(one: Rule, words: list[str]) -> None:
    """Under hold the clocks stand still: a series with gaps ends as the one without them (shorter by the gaps)."""
    words = [word for word in words if word != "x"]
    patient = replace(one, no_data="hold", no_data_after=1e6)
    whole, short = Evaluator([patient], "r"), Evaluator([patient], "r")
    timeline(whole, frames(" ".join(words)))
    timeline(short, frames(" ".join(word for word in words if word != "_")))
    assert states(whole) == states(short)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.0, 2.0, math.nan])), max_size=12))
def test_series_do_not_disturb_each_other(given_: list[dict[str, float]]) -> None:
    together = Evaluator([rule(for_seconds=5)], "r")
    alone = {name: Evaluator([rule(for_seconds=5)], "r") for name in "abcd"}
    for number, row in enumerate(given_):
        named = {f"s={name}": value for name, value in row.items()}
        together.evaluate(frame(5 * number, named))
        for name, one in alone.items():
            one.evaluate(frame(5 * number, {key: value for key, value in named.items() if key == f"s={name}"}))
        apart = {key: state for one in alone.values() for key, state in states(one).items()}
        assert states(together) == apart


def test_label_sets_are_sorted_and_rule_labels_win() -> None:
    found = label_set(rule(labels=(("target", "all"),)), "r", labels("target=e0,zone=z"))
    assert found == tuple(sorted(found))
    assert dict(found)["target"] == "all"
