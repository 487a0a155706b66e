"""What may stand in a user's selector, and what the queries keep of the engines' labels."""

import re

import pytest

from collectors.generators import prometheus


@pytest.mark.parametrize(
    ("selector", "inside"),
    [
        ("", ""),
        ("{}", ""),
        ('{job="vllm"}', 'job="vllm"'),
        (' { job = "vllm" , pod=~"a.*|b" , x!~"", y!="}" , } ', 'job="vllm",pod=~"a.*|b",x!~"",y!="}"'),
        (r'{path="a\"b\\c"}', r'path="a\"b\\c"'),
    ],
)
def test_selectors(selector: str, inside: str) -> None:
    assert prometheus.matchers(selector) == inside


@pytest.mark.parametrize(
    "selector",
    [
        "up",
        'job="vllm"',
        '{job="a"} or {x="y"}',
        '{job="a"}) or vector(1) or ({x="y"}',
        '{job="a" # }\n}',
        '{__name__="up"}',
        "{job=vllm}",
        "{job='vllm'}",
        '{job="a" xx="b"}',
        '{,job="a"}',
        '{job=="a"}',
        '{job="a\n"}',
        '{job="' + "a" * 600 + '"}',
    ],
)
def test_nothing_but_matchers_passes(selector: str) -> None:
    with pytest.raises(ValueError, match=re.compile("matchers in braces|collector's own|longer than")):
        prometheus.matchers(selector)


def test_every_label_that_the_collectors_look_at_is_kept() -> None:
    """A label that the sums drop would add engines' parts up: the tables may grow, this list follows them."""
    assert {"engine", "dp_rank", "tp_rank", "finished_reason", "mode", "reason", "source", "operation"} <= set(
        prometheus.SUM_LABELS
    )
    assert not {"le", "pod", "instance", "replica"} & set(prometheus.SUM_LABELS)


def test_gauges_are_held_as_long_as_the_stores_interval_asks_for() -> None:
    assert prometheus.configured({"scrape_seconds": "10"}).report_seconds == 10
    assert prometheus.configured({}).report_seconds == 60
    assert prometheus.configured({"scrape_seconds": "x"}).report_seconds == 60  # the poll says what is wrong
