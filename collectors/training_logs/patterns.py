"""Detects regular expressions of users that could hang: Python's engine backtracks, and a pattern runs on every key.

The check reads the pattern's text, which `re.compile` has accepted: groups, alternatives and repetitions count. Each
part that varies (``*``, ``?``, ``a|b``) has a number of choices. The choices of consecutive parts multiply. A part that
varies may not be repeated, because its choices would grow exponentially: ``(a+)+``, ``(a|a)*``, ``(a?){30}``. A class
that ends at its separator (``[^/]+/``) and a possessive repetition (``.*+``) have one choice.
"""

import re
from dataclasses import dataclass

# Characters of a key; longer keys are not matched.
KEY_LENGTH = 256
# Three `.*` and a few alternatives: some tenths of a second, once per key.
MAX_CHOICES = 5 * KEY_LENGTH**3

_TOKEN = re.compile(
    r"(?P<comment>\(\?#[^)]*\))|(?P<flags>\(\?[aiLmsux]+\))|(?P<back>\(\?P=\w+\))"
    r"|(?P<open>\((?:\?(?:P<\w+>|<[=!]|[=!>:]|[aiLmsux]*(?:-[imsx]+)?:|\(\w+\)))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?!\})\d*(?:,\d*)?\})(?P<how>[+?]?)"
    r"|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """``choices``: of the finished alternatives; ``branch``: of the current one; ``last``: of its newest piece."""

    start: int
    choices: int = 0
    branch: int = 1
    last: int = 1
    text: str = ""

    def piece(self, choices: int, text: str) -> None:
        self.branch *= self.last
        self.last, self.text = choices, text

    def total_choices(self) -> int:
        return self.choices + self.branch * self.last


def hangs(pattern: re.Pattern[str]) -> str:
    """Returns why a pattern may hang on some key, and what to write instead; "" if it cannot."""
    text = pattern.pattern
    if pattern.flags & re.VERBOSE:
        return "(?x) is not supported: write the pattern without spaces and comments"
    groups = [_Group(0)]
    for token in _TOKEN.finditer(text):
        if problem := _apply_token(token, text, groups):
            return problem
    if groups[0].total_choices() > MAX_CHOICES:
        return "too many repetitions and alternatives one after another: at most three of .* or .+; [^/]+/ is free"
    return ""


def _apply_token(token: re.Match[str], text: str, groups: list[_Group]) -> str:
    group = groups[-1]
    if token["open"] is not None:
        groups.append(_Group(token.start()))
    elif token["close"] is not None:
        done = groups.pop()
        groups[-1].piece(done.total_choices(), text[done.start : token.end()])
    elif token["bar"] is not None:
        group.choices, group.branch, group.last = group.total_choices(), 1, 1
    elif token["times"] is not None:
        return _repeat(token, text, group)
    elif token["one"] is not None or token["back"] is not None:
        group.piece(1, token[0])
    return ""


def _repeat(token: re.Match[str], text: str, group: _Group) -> str:
    min_count, max_count = _bounds(token["times"])
    if group.last > 1 and max_count > 1:
        return (
            f"{group.text}{token[0]} repeats a part that varies, and may never finish: repeat a class such as [^/]+ "
            "or .*, or write the alternatives out"
        )
    free = token["how"] == "+" or _ends_by_itself(group.text, text[token.end() : token.end() + 1])
    group.last, group.text = group.last * (1 if free else max_count - min_count + 1), group.text + token[0]
    return ""


def _bounds(times: str) -> tuple[int, int]:
    if not times.startswith("{"):
        return (1 if times == "+" else 0), (1 if times == "?" else KEY_LENGTH)
    min_count, comma, max_count = times.strip("{}").partition(",")
    low = min(int(min_count or 0), KEY_LENGTH)
    return low, min(int(max_count or KEY_LENGTH), KEY_LENGTH) if comma else low


def _ends_by_itself(piece: str, following: str) -> bool:
    """Returns whether the piece is a class that excludes the character after it."""
    inside = piece[2:-1] if piece.startswith("[^") else ""
    return "\\" not in inside and following not in ("", *"\\.[(|)*+?{^$") and following in inside
