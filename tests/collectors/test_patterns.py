"""A user's own pattern must not hang: what is refused, what is not, and what the worst of the accepted ones cost."""

import re

import pytest

from collectors.model import Limits
from collectors.trainers import custom
from collectors.training_logs import maps
from collectors.training_logs.maps import KEY_LENGTH, hangs

NESTED = [
    "(a+)+b", "(a*)*", "(a|a)*b", "(?:a|b)+x", "(a?){30}", "(a?a?)*", "((ab+)c)+", "(a+){2}", "(?P<x>a+)*",
    "(?=(a+)+)b", "(a{1,3}){1,30}", "(?i:a+)+", "(?>a|ab)*b",
]  # fmt: skip
MANY = [".*.*.*.*x", "(.*)(.*)(.*)(.*)", "a?" * 40, "(a|b|c|d|e|f).*.*.*"]
FINE = [
    "loss", ".*", "loss(?:_mean)?", "(?:pg|kl)_loss", "env/[^/]+/reward/.*", "[^/]+/[^/]+/[^/]+/[^/]+/x", r"a\(b+\)+",
    ".*/.*/mean", "(ab)+", "[]a]+", "(a++)+b", "a{3}", "x{", "(?#(a+)x", r"[(]a+[)]+", "(?i)loss/.*", "(?:.*/)?x",
]  # fmt: skip


@pytest.mark.parametrize("text", NESTED)
def test_what_varies_is_not_repeated(text: str) -> None:
    assert "repeats a part that varies" in hangs(re.compile(text))


@pytest.mark.parametrize("text", MANY)
def test_repetitions_multiply(text: str) -> None:
    assert "too many repetitions" in hangs(re.compile(text))


@pytest.mark.parametrize("text", FINE)
def test_ordinary_patterns_are_taken(text: str) -> None:
    assert hangs(re.compile(text)) == ""


def test_the_error_names_the_key_and_the_fix() -> None:
    problems: list[str] = []
    rows = [{"key": "loss", "metric": "loss_mean"}, {"key": "(a+)+b", "metric": "reward_mean"}]
    assert len(maps.check(rows, lambda where, words: problems.append(f"map{where}.{words}"))) == 1
    assert problems == [
        "map[1].key: '(a+)+b': (a+)+ repeats a part that varies, and may never finish: repeat a class such as [^/]+ "
        "or .*, or write the alternatives out"
    ]


def test_a_key_costs_once_and_a_long_one_is_nobodys() -> None:
    asked: list[str] = []

    class Counting:
        def fullmatch(self, key: str) -> object:
            asked.append(key)
            return key.startswith("a")

    row = maps.Map(Counting(), None)  # type: ignore[arg-type]
    find = maps.lookup((row,))
    longest = "a" * KEY_LENGTH
    assert [find(key) for key in ("a", "b", "a", "b", longest, longest + "a")] == [row, None, row, None, row, None]
    assert asked == ["a", "b", longest]


def test_long_keys_are_counted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    long = "k" * (KEY_LENGTH + 1)
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1, "time": 1000, "{long}": 1, "loss": 2}}\n')
    tail = custom.configured({"map": '[{"key": ".*", "metric": "loss_mean"}]'}).tail
    assert tail is not None
    reading = tail(tmp_path / "log.jsonl", {}, Limits(), 2000.0)
    assert reading.unmapped == {long[:120]: 1}
    assert 2 in [sample.value for sample in reading.samples]
