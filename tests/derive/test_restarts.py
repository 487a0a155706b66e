"""A process that began anew and counts beyond its old value by the next page: told by its start time."""

import pytest

from collectors.model import Histogram, Reading, Sample
from server import signals
from server.derive.deriver import Deriver
from server.signals.model import Value
from server.signals.observed_histograms import totals
from server.store import Store
from tests.driven_run import ENGINE, T0, Bench, bench

TOKENS = "generator_generated_tokens_total"
COUNTED = (1000.0, 1100.0, 1200.0, 1250.0, 5000.0)


def page(tokens: float, began: float) -> Reading:
    return Reading(
        samples=(
            Sample("generator_start_time_seconds", began),
            Sample("generator_requests_running", 5.0),
            Sample("generator_tokens_total", tokens),
            Sample("generator_prompt_tokens_total", tokens),
        )
    )


def show(run: Bench, first: int, last: int) -> None:
    """A page every 5 s; from the fifth on it is another process, which began 2 s before."""
    for number in range(first, last):
        began = T0 - 900 if number < 4 else T0 + 18
        run.commit(ENGINE, page(COUNTED[number], began), T0 + 5 * number)
        run.advance(T0 + 5 * number)


@pytest.mark.parametrize("killed", [None, 2, 4])
def test_what_a_new_process_counted_is_added_whole(store: Store, killed: int | None) -> None:
    """1,000 to 1,250, then 5,000 of a new one: 5,250, not 4,000; as well when we were restarted between two pages."""
    with bench(store) as run:
        show(run, 0, killed or 5)
    if killed is not None:
        with bench(store) as run:
            show(run, killed, 5)
            assert run.value(TOKENS) == 5250.0
            return
    assert run.value(TOKENS) == 5250.0
    assert run.value("generator_tokens_per_second") == pytest.approx(5250.0 / 20)


def test_a_restart_that_was_committed_and_not_derived(store: Store) -> None:
    """Died in between: the store gives the page back, in which the start time need not come first."""
    with bench(store) as run:
        show(run, 0, 4)
        run.commit_only(ENGINE, page(COUNTED[4], T0 + 18), T0 + 20)
    with bench(store) as run:
        run.advance(T0 + 20)
        assert run.value(TOKENS) == 5250.0
        assert run.value("generator_prompt_tokens_per_second") == pytest.approx(5250.0 / 20)


def _fed(*began: float) -> Deriver:
    """A page every 5 s: 100 tokens more each."""
    deriver = Deriver(signals.load(), lambda _: 15.0)
    for number, since in enumerate(began):
        for metric, value in (("generator_start_time_seconds", since), ("generator_tokens_total", 100.0 * number)):
            deriver.sample(1000.0 + 5 * number, "e", metric, (), value)
    return deriver


@pytest.mark.parametrize(
    ("began", "counted"),
    [
        ((10.0, 10.0, 10.0), 200.0),
        ((10.0, 10.4, 10.2), 200.0),  # worked out anew for each page
        ((10.0, 20.0, 10.0, 20.0), 300.0),  # two by turns: else 100, 100 and 300
        ((10.0, 10.0, 20.0), 300.0),
    ],
)
def test_only_a_younger_process_is_another(began: tuple[float, ...], counted: float) -> None:
    assert dict(_fed(*began).counter_values())[TOKENS] == Value(counted)


def test_of_a_merged_page_only_the_replica_began_anew() -> None:
    deriver = Deriver(signals.load(), lambda _: 15.0)
    for at, since, tokens in ((1000.0, 10.0, 100.0), (1005.0, 1004.0, 300.0)):
        for name in ("a", "b"):
            labels = (("replica", name),)
            deriver.sample(at, "r", "generator_start_time_seconds", labels, since if name == "a" else 10.0)
            deriver.sample(at, "r", "generator_tokens_total", (("engine", "0"), *labels), tokens)
    assert dict(deriver.counter_values())[TOKENS] == Value(500.0)  # 300 of a, 200 of b


def test_a_histogram_of_a_new_process_counts_whole() -> None:
    """4 observations of 2 s, then 10 of 9 s by the new one: 10 within the window, not 6."""
    deriver = Deriver(signals.load(), lambda _: 15.0)
    for at, since, count, total in ((1000.0, 10.0, 4.0, 2.0), (1005.0, 1003.0, 10.0, 9.0)):
        deriver.sample(at, "e", "generator_start_time_seconds", (), since)
        item = Histogram("e2e_request_seconds", (1.0,), (count, count), total)
        deriver.sample(at, "e", "e2e_request_seconds", (), item)
    assert totals(deriver.histograms.pools.values(), 1005.0) == (10.0, 9.0)
