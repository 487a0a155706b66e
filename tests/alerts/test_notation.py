"""The series notation, word by word and against promtool."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from server.alerts.series_notation import MAX_TEXT, MAX_VALUES, Item, Mark, parse

NO, STALE = Mark.NO_SAMPLE, Mark.STALE


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("1", [1.0]),
        ("1 2.5 -3 +4", [1.0, 2.5, -3.0, 4.0]),
        ("1x0", [1.0]),
        ("1x3", [1.0] * 4),
        ("0+10x3", [0.0, 10.0, 20.0, 30.0]),
        ("1-2x2", [1.0, -1.0, -3.0]),
        ("-1+0.5x2", [-1.0, -0.5, 0.0]),
        ("_ _x2 1 stale", [NO, NO, NO, 1.0, STALE]),
        ("_x0", []),
        ("1e2 1E-2 .5x1 1.x1", [100.0, 0.01, 0.5, 0.5, 1.0, 1.0]),
        ("1+1e1x2", [1.0, 11.0, 21.0]),
        ("0.1+0.1x2", [0.1, 0.2, 0.30000000000000004]),
        ("Inf -Inf +inf", [math.inf, -math.inf, math.inf]),
        ("  1\n2\t3 ", [1.0, 2.0, 3.0]),
    ],
)
def test_words(text: str, items: list[Item]) -> None:
    assert parse(text) == items


def test_nan_is_a_value() -> None:
    (one,) = parse("NaN")
    assert isinstance(one, float)
    assert math.isnan(one)


@pytest.mark.parametrize(
    "text",
    ["x", "1x", "x2", "1xx2", "1X2", "1+1", "1++1x2", "1+-1x3", "stalex2", "_X2", "1x-2", "1x2.0", "1,2", "1_0", "0x1f",
     "Infx2", "1+Infx2", "NaNx2", "infinity", "{{schema:0}}", "٣", "1x٣"],
)  # fmt: skip
def test_words_that_are_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a value of the notation|more than"):
        parse(f"0 {text}")


@pytest.mark.parametrize(
    "text", [f"1x{MAX_VALUES}", f"_x{MAX_VALUES + 1}", f"0 1+1x{MAX_VALUES - 1}", "1x999999999", "1x" + "9" * 5000,
             "_x" + "9" * 5000, f"1x{MAX_VALUES - 1} stale"]
)  # fmt: skip
def test_too_many_are_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100,000 values"):
        parse(text)


def test_limits_are_not_one_too_low() -> None:
    assert len(parse(f"1x{MAX_VALUES - 1}")) == MAX_VALUES
    with pytest.raises(ValueError, match="longer than"):
        parse("1" * (MAX_TEXT + 1))


@given(st.text(alphabet="0123456789.+-x_ eNaInfstl", max_size=30))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    try:
        items = parse(text)
    except ValueError:
        return
    assert len(items) <= MAX_VALUES


TAKEN = [
    "1x0",
    "0+10x3",
    "1-2x2",
    "_x3 1",
    "1e2x2",
    "1+1e1x2",
    "Inf",
    "+1",
    ".5x2",
    "1.x2",
    "0.1+0.1x7",
    "1 _ 2 stale 3",
]
REFUSED = [
    "1 x2",
    "1X2",
    "stalex2",
    "_X2",
    "1++1x2",
    "1+-1x3",
    "1_0",
    "Infx2",
    "1+Infx2",
    "1x-2",
    "1x2.0",
    "1+1",
    "1,2",
]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
@pytest.mark.parametrize("text", TAKEN + REFUSED)
def test_promtool_reads_the_same(text: str, tmp_path: Path) -> None:
    """Every item is asked for at its time; a gap by a range that holds it alone."""
    items = parse(text) if text in TAKEN else []
    asked = [
        {"expr": "sum_over_time(m[1s])", "eval_time": f"{n}m", "exp_samples": samples(item)}
        for n, item in enumerate(items)
    ]
    test = {"interval": "1m", "input_series": [{"series": "m", "values": text}], "promql_expr_test": asked}
    (tmp_path / "t.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "t.yml"], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (text in TAKEN), done.stderr
    assert bool(re.search("parse error", done.stderr)) == (text in REFUSED)


def samples(item: Item) -> list[dict[str, object]]:
    return [] if isinstance(item, Mark) else [{"labels": "{}", "value": item}]
