"""Numbers, words and escapes."""

import math

import pytest

from dashboard.callbacks import range_links
from dashboard.state.url import Address
from dashboard.widgets import format as fmt
from server.query.types import RunInfo


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.00012, "1.2e-04"),
        (0.0213, "0.021"),
        (0.5, "0.5"),
        (1.954, "1.95"),
        (4.0, "4"),
        (34.26, "34.3"),
        (99.97, "100"),
        (412.4, "412"),
        (1204, "1,204"),
        (10_432, "10.4k"),
        (250_000, "250k"),
        (2.5e6, "2.5M"),
        (7e9, "7G"),
        (-3.2, "-3.2"),
    ],
)
def test_number(value: float, shown: str) -> None:
    assert fmt.number(value) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.64, "ratio", "64%"),
        (0.0342, "ratio", "3.4%"),
        (0.05, "ratio", "5%"),
        (0.0, "ratio", "0%"),
        (41.23, "seconds", "41.2 s"),
        (0.0000607, "seconds", "60.7 µs"),
        (600, "seconds", "10 min"),
        (61.0, "celsius", "61 °C"),
        (409.7, "watts", "410 W"),
        (52_300.0, "watts", "52.3 kW"),
        (1.98e9, "hertz", "1.98 GHz"),
        (10_800, "seconds", "3 h"),
        (1.95, "samples/s", "1.95 samples/s"),
        (None, "ratio", "–"),
        (math.nan, "ratio", "–"),
        (math.inf, "seconds", "–"),
    ],
)
def test_text(value: float | None, unit: str, shown: str) -> None:
    assert fmt.text(value, unit) == shown


def test_shares_in_sentences_are_written_as_everywhere() -> None:
    assert fmt.tight("waits 63% of it; 7.5% is 100%") == "waits 63% of it; 7.5% is 100%"
    assert fmt.tight("90% of %d and %20") == "90% of %d and %20"


def test_escape_leaves_no_markup() -> None:
    assert fmt.escape('<a href="x">R&D</a>') == '&lt;a href="x"&gt;R&amp;D&lt;/a&gt;'


def test_series_name_sorts_labels() -> None:
    assert fmt.series_name("staleness_versions", {"stat": "mean", "level": "token"}) == (
        'staleness_versions{level="token",stat="mean"}'
    )
    assert fmt.series_name("entropy", {}) == "entropy"


def test_of_an_absolute_time_no_range_is_chosen() -> None:
    run = RunInfo("a", "", "", "running", 0.0, 1000.0)
    chosen = [[link.children for link in range_links(address, run) if link.className == "current"]
              for address in (Address("a", "1h", 0.0, 900.0), Address("a", "6h"))]  # fmt: skip
    assert chosen == [[], ["6h"]]
