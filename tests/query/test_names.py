"""Series names: written as Prometheus does, read back exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.query.types import format_name, parse_name

label = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
labels = st.dictionaries(label, st.text(max_size=12), max_size=4)


def test_written_form() -> None:
    assert format_name("queue_samples", ()) == "queue_samples"
    assert format_name("staleness_versions", (("stat", "mean"), ("level", "trajectory"))) == (
        'staleness_versions{level="trajectory",stat="mean"}'
    )


@given(label, labels)
def test_what_was_written_is_read_back(name: str, pairs: dict[str, str]) -> None:
    assert parse_name(format_name(name, tuple(pairs.items()))) == (name, tuple(sorted(pairs.items())))


@pytest.mark.parametrize(
    "text", ["", "1x", "a{", "a{b=c}", 'a{b="c"', 'a{b="c",d}', 'a{b="c"}}', "a b", 'a{="x"}', "a{,}"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a series name"):
        parse_name(text)
