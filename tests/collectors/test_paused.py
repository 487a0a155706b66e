"""A pause told by the calls that begin and end it: what the count proves, and what it does not."""

import pytest

from collectors.engine_pages import side_requests
from collectors.model import Labels, Reading, Sample, State

Row = tuple[int | None, int | None, int]


def page(pauses: int | None, resumes: int | None, tokens: int, replica: Labels = ()) -> Reading:
    """Counts of a page; None: that call was never made."""
    calls = {"pause": pauses, "resume": resumes}
    found = [
        Sample("generator_control_requests_total", float(count), (("call", call), *replica))
        for call, count in calls.items()
        if count is not None
    ]
    return Reading(samples=(*found, Sample("generator_tokens_total", float(tokens), (("engine", "0"), *replica))))


def told(reading: Reading) -> list[float]:
    return [sample.value for sample in reading.samples if sample.metric == "generator_paused"]


def watched(*rows: Row) -> list[list[float]]:
    state: State = {}
    return [told(side_requests.with_paused(page(*row), state)) for row in rows]


def test_one_pause_more_than_resumes_is_paused() -> None:
    assert watched((3, 3, 10), (4, 3, 20), (4, 3, 20), (4, 4, 20), (4, 4, 30)) == [[0], [1], [1], [0], [0]]


def test_never_called_is_not_known() -> None:
    """A pause from Python shows nowhere: no zero is made up."""
    assert watched((None, None, 10), (None, None, 10)) == [[], []]


def test_a_first_pause_without_any_resume() -> None:
    assert watched((None, None, 10), (1, None, 20), (1, None, 20), (1, 1, 20)) == [[], [1], [1], [0]]


def test_a_caller_that_pauses_twice_and_resumes_once() -> None:
    """Tokens come on two pages in a row with nothing called between: it runs, whatever the counts say."""
    assert watched((5, 3, 10), (5, 3, 20), (5, 3, 30)) == [[1], [1], [0]]
    assert watched((5, 3, 10), (5, 3, 20), (5, 3, 30), (6, 3, 40), (6, 3, 40), (6, 4, 40)) == [
        [1], [1], [0], [1], [1], [0],
    ]  # fmt: skip


def test_tokens_of_the_step_that_a_pause_let_end_are_no_proof() -> None:
    assert watched((4, 3, 10), (4, 3, 12), (4, 3, 12), (4, 3, 12)) == [[1], [1], [1], [1]]


def test_a_restarted_server_begins_anew() -> None:
    assert watched((5, 3, 10), (5, 3, 20), (5, 3, 30), (1, 0, 5)) == [[1], [1], [0], [1]]


def test_servers_of_a_merged_page_are_judged_apart() -> None:
    a, b = (("replica", "a"),), (("replica", "b"),)
    both = Reading(samples=(*page(2, 1, 10, a).samples, *page(1, 1, 10, b).samples))
    found = {s.labels: s.value for s in side_requests.with_paused(both, {}).samples if s.metric == "generator_paused"}
    assert found == {a: 1, b: 0}


def answered(state: State, row: Row, answer: bool) -> list[float]:
    side = Reading(samples=(Sample("generator_paused", float(answer)),))
    return told(side_requests.joined_pauses(side_requests.with_paused(page(*row), state), side, state))


def asked_not(state: State, row: Row) -> list[float]:
    return told(side_requests.joined_pauses(side_requests.with_paused(page(*row), state), Reading(), state))


@pytest.mark.parametrize("answer", [True, False])
def test_the_engines_own_word_stands_above_the_count_and_holds(answer: bool) -> None:
    state: State = {}
    assert answered(state, (None, None, 10), answer) == [answer]
    assert asked_not(state, (None, None, 10)) == [answer]
    unbalanced: State = {}
    assert answered(unbalanced, (5, 3, 10), answer) == [answer]
    assert asked_not(unbalanced, (5, 3, 10)) == [answer]
    assert asked_not(unbalanced, (6 if not answer else 5, 3 if not answer else 4, 10)) == [not answer]


def test_an_answer_that_tokens_disprove_holds_no_longer() -> None:
    state: State = {}
    assert answered(state, (None, None, 10), True) == [1]
    # Generated between the page and the pause that the answer saw: not yet a proof.
    assert asked_not(state, (None, None, 15)) == [1]
    assert asked_not(state, (None, None, 20)) == [0]
