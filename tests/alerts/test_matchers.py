"""Matchers: Prometheus' meaning, and patterns that cannot stop a tick."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.lib.matchers import Matcher, all_match, matcher, parse

LABELS = {"alertname": "RunStalled", "severity": "critical", "target": "engine-12"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('severity="critical"', True),
        ("severity=critical", True),
        ('severity!="critical"', False),
        ('target=~"engine-.*"', True),
        ('target=~"engine"', False),  # anchored, as in Prometheus
        ('target!~"engine-1[0-9]"', False),
        ('severity=~"warning|critical"', True),
        ('nosuch=""', True),  # absent is the empty string
        ('nosuch!=""', False),
        ('nosuch=~".*"', True),
        ('nosuch=~".+"', False),
    ],
)
def test_they_mean_what_prometheus_means(text: str, fits: bool) -> None:
    assert parse(text).matches(LABELS) is fits


@pytest.mark.parametrize(
    "text", ["", "severity", '1x="a"', 'a="b', "a==b", 'a=~"("', 'a=~"[z-a]"', 'se-verity="x"', 'a~"b"']
)
def test_nonsense_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"matcher|expression|pattern"):
        parse(text)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)*b", "(.*)(.*)(.*)x", r"(a)\1", "(?=a)", "a{1000}", ".*.*.*", "x" * 201, "(?i)a"]
)
def test_patterns_that_may_run_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        matcher("a", "=~", pattern)


def test_what_is_allowed_is_bounded() -> None:
    """Two unbounded repeats over the longest label there can be: thousands of steps, not minutes."""
    assert not matcher("a", "=~", ".*x.*y").matches({"a": "x" * 2000})


@given(st.sampled_from(["=", "!="]), st.text(max_size=30))
def test_written_and_read_again_they_are_the_same(op: str, value: str) -> None:
    one = matcher("label", op, value)
    assert parse(str(one)) == one


@given(st.text(max_size=60))
def test_any_text_is_a_matcher_or_a_clear_error(text: str) -> None:
    try:
        found = parse(text)
    except ValueError as error:
        assert str(error)
    else:
        assert re.fullmatch(r"[a-zA-Z_]\w*", found.name, re.ASCII)


def test_none_hold_for_everything() -> None:
    assert all_match((), LABELS)
    assert not all_match((Matcher("severity", "=", "critical"), Matcher("run", "=", "a")), LABELS)
