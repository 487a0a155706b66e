"""promtool's notation of a series: ``1+0.5x10 _x3 stale`` -> one item per interval. Pure, bounded before parsing.

Source: prometheus docs/configuration/unit_testing_rules.md and promql/parser/generated_parser.y (the rules for
`series_values`). Histograms (``{{...}}``) are not taken: no signal is one.
"""

import re
from enum import Enum
from itertools import accumulate


class Mark(Enum):
    """An interval without a value."""

    NO_SAMPLE = "_"
    STALE = "stale"


Item = float | Mark

# Far more than half a day at the 5 s grid; a longer series is a typing error in an exponent.
MAX_VALUES = 100_000
MAX_TEXT = 1_000_000

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_EXPANDED = re.compile(rf"([+-]?{_NUMBER})(?:([+-]{_NUMBER}))?x(\d+)", re.ASCII)
# Inf and NaN cannot be expanded, as in promtool: there "Infx2" is one word.
_SINGLE = re.compile(rf"[+-]?(?:{_NUMBER}|inf|nan)", re.ASCII | re.IGNORECASE)
_OMITTED = re.compile(r"_(?:x(\d+))?", re.ASCII)


def parse(text: str) -> list[Item]:
    """Parses the items in order. ``axn`` and ``a+bxn`` are n + 1 values, ``_xn`` is n times no sample, as in promtool.

    Raises:
        ValueError: invalid item, or too many values; the message is for a user.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"longer than {MAX_TEXT:,} characters")
    items: list[Item] = []
    for word in text.split():
        items += _word(word, MAX_VALUES - len(items))
    return items


def _word(word: str, room: int) -> list[Item]:
    if word == "stale":
        return _repeated([Mark.STALE], 1, room)
    if (omitted := _OMITTED.fullmatch(word)) is not None:
        return _repeated([Mark.NO_SAMPLE], _count(omitted[1] or "1", room), room)
    if (expanded := _EXPANDED.fullmatch(word)) is not None:
        return _expanded(expanded[1], expanded[2], _count(expanded[3], room), room)
    if _SINGLE.fullmatch(word) is not None:
        return _repeated([float(word)], 1, room)
    raise ValueError(f"{word[:40]!r} is not a value of the notation: 0.5, 1+2x3, 1-2x3, 1x3, _, _x3, stale")


def _expanded(start: str, delta: str | None, count: int, room: int) -> list[Item]:
    values = _repeated([float(start)], count + 1, room)
    if delta is None:
        return values
    # Added up one by one as promtool does, so that the last digit is the same.
    return list(accumulate([float(start), *[float(delta)] * count]))


def _repeated(items: list[Item], count: int, room: int) -> list[Item]:
    if count > room:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    return items * count


def _count(text: str, room: int) -> int:
    # The digits are counted first, because Python refuses to parse a number of 5,000 digits.
    return int(text) if len(text) < 10 else room + 1
