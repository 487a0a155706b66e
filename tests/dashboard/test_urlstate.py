"""The address of a page, and the time it shows."""

from dataclasses import replace

import pytest

from dashboard.callbacks import run_links
from dashboard.state import url as state_url
from dashboard.state.url import Address
from server.query.types import RunInfo


@pytest.mark.parametrize(
    ("search", "address"),
    [
        ("", Address(None)),
        ("?run=a%2Fb&range=6h", Address("a/b", "6h")),
        ("?run=a&range=9y", Address("a", unknown_range="9y")),
        ("?start=100&end=200", Address(None, "1h", 100.0, 200.0)),
        ("?start=200&end=100", Address(None)),
        ("?start=nan&end=inf", Address(None)),
        ("?run=a&all=1", Address("a", all=True)),
        ("?all=yes", Address(None)),
    ],
)
def test_parse(search: str, address: Address) -> None:
    assert state_url.parse(search) == address


@pytest.mark.parametrize(
    ("search", "kept"),
    [
        ("?run=a&range=6h&axis=step&over=1d", "?run=b&range=6h&axis=step&over=1d"),
        ("?run=a&axis=time&over=7d&align=now", "?run=b&range=1h&over=7d"),
        # It may be the very run that is chosen; a place of its own has no meaning there either.
        ("?run=a&over=b&align=now&axis=step&panel=kv&start=1&end=9", "?run=b&range=1h&axis=step"),
    ],
)
def test_another_run_is_shown_in_the_same_manner(search: str, kept: str) -> None:
    links = run_links([RunInfo("b", "", "", "running", None, None)], {}, state_url.parse(search))
    assert [link.href for link in links] == [kept]


def run(lifecycle: str) -> RunInfo:
    return RunInfo("r", "", "", lifecycle, 1000.0, 5000.0)


def test_span() -> None:
    assert state_url.span(Address("r", "15m"), run("running"), 9000.0, 4900.0) == state_url.Span(8100.0, 9000.0, True)
    assert state_url.span(Address("r", "all"), run("running"), 9000.0, None) == state_url.Span(
        1000.0, 9000.0, True, True
    )
    assert state_url.span(Address("r", "15m"), run("finished"), 9000.0, None) == state_url.Span(4100.0, 5000.0, False)
    fixed = Address("r", "1h", 10.0, 20.0)
    assert state_url.span(fixed, run("running"), 9000.0, 4900.0) == state_url.Span(10.0, 20.0, False)


def test_an_absolute_time_is_cut_to_what_the_run_has() -> None:
    for asked, shown in (((500.0, 3000.0), (1000.0, 3000.0)), ((8000.0, 9900.0), (8000.0, 9000.0))):
        found = state_url.span(Address("r", "1h", *asked), run("running"), 9000.0, None)
        assert (found.start, found.end) == shown


def test_a_range_longer_than_a_live_run_is_cut_to_its_age() -> None:
    """A week of a run of 8,000 s was one column of pixels."""
    cut = state_url.Span(1000.0, 9000.0, follow=True, grows=True)
    assert state_url.span(Address("r", "7d"), run("running"), 9000.0, 4900.0) == cut
    # A younger run has an hour, at least.
    hour = state_url.Span(-1100.0, 2500.0, follow=True, grows=True)
    assert state_url.span(Address("r", "7d"), run("running"), 2500.0, 2400.0) == hour
    assert state_url.span(Address("r", "1h"), run("running"), 2500.0, 2400.0) == replace(hour, grows=False)


def test_span_of_a_finished_run_is_where_its_data_is() -> None:
    # `last_ts` (5000) moves with our own ticks; the data ended at 2000, 1000 s after it began.
    assert state_url.span(Address("r", "15m"), run("finished"), 9000.0, 2000.0) == state_url.Span(1100.0, 2000.0, False)
    assert state_url.span(Address("r", "1h"), run("finished"), 9000.0, 2000.0) == state_url.Span(1000.0, 2000.0, False)
    assert state_url.span(Address("r", "all"), run("crashed"), 9000.0, 1010.0) == state_url.Span(950.0, 1010.0, False)
