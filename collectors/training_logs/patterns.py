"""Can a user's regular expression hang? Python's engine backtracks, and a pattern runs on every key that is logged.

Read off the pattern's text, which `re.compile` has accepted: groups, alternatives and repetitions are all that count.
What varies (``*``, ``?``, ``a|b``) has so many choices; they multiply where pieces follow one another, and a piece
that varies may not be repeated, for then they grow exponentially: ``(a+)+``, ``(a|a)*``, ``(a?){30}``. A class that
ends at its separator (``[^/]+/``) and a possessive repetition (``.*+``) leave nothing to choose.
"""

import re
from dataclasses import dataclass

# Longer keys are not matched.
KEY_LENGTH = 256
# Three `.*` and a few alternatives: some tenths of a second, once for a key.
MOST_CHOICES = 5 * KEY_LENGTH**3

_TOKEN = re.compile(
    r"(?P<comment>\(\?#[^)]*\))|(?P<flags>\(\?[aiLmsux]+\))|(?P<back>\(\?P=\w+\))"
    r"|(?P<open>\((?:\?(?:P<\w+>|<[=!]|[=!>:]|[aiLmsux]*(?:-[imsx]+)?:|\(\w+\)))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?!\})\d*(?:,\d*)?\})(?P<how>[+?]?)"
    r"|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """``choices``: of the alternatives before; ``branch``: of the one being read; ``last``: its newest piece's."""

    start: int
    choices: int = 0
    branch: int = 1
    last: int = 1
    text: str = ""

    def piece(self, choices: int, text: str) -> None:
        self.branch *= self.last
        self.last, self.text = choices, text

    def whole(self) -> int:
        return self.choices + self.branch * self.last


def hangs(pattern: re.Pattern[str]) -> str:
    """Why a pattern may take for ever on some key, with what to write instead; "" when it cannot."""
    text = pattern.pattern
    if pattern.flags & re.VERBOSE:
        return "(?x) is not read here: write the pattern without spaces and comments"
    groups = [_Group(0)]
    for token in _TOKEN.finditer(text):
        if problem := _take(token, text, groups):
            return problem
    if groups[0].whole() > MOST_CHOICES:
        return "too many repetitions and alternatives one after another: at most three of .* or .+; [^/]+/ is free"
    return ""


def _take(token: re.Match[str], text: str, groups: list[_Group]) -> str:
    here = groups[-1]
    if token["open"] is not None:
        groups.append(_Group(token.start()))
    elif token["close"] is not None:
        done = groups.pop()
        groups[-1].piece(done.whole(), text[done.start : token.end()])
    elif token["bar"] is not None:
        here.choices, here.branch, here.last = here.whole(), 1, 1
    elif token["times"] is not None:
        return _repeat(token, text, here)
    elif token["one"] is not None or token["back"] is not None:
        here.piece(1, token[0])
    return ""


def _repeat(token: re.Match[str], text: str, here: _Group) -> str:
    least, most = _bounds(token["times"])
    if here.last > 1 and most > 1:
        return (
            f"{here.text}{token[0]} repeats what varies itself, and may take for ever: repeat a class such as [^/]+ "
            "or .*, or write the alternatives out"
        )
    free = token["how"] == "+" or _ends_by_itself(here.text, text[token.end() : token.end() + 1])
    here.last, here.text = here.last * (1 if free else most - least + 1), here.text + token[0]
    return ""


def _bounds(times: str) -> tuple[int, int]:
    if not times.startswith("{"):
        return (1 if times == "+" else 0), (1 if times == "?" else KEY_LENGTH)
    least, comma, most = times.strip("{}").partition(",")
    low = min(int(least or 0), KEY_LENGTH)
    return low, min(int(most or KEY_LENGTH), KEY_LENGTH) if comma else low


def _ends_by_itself(piece: str, following: str) -> bool:
    """Is it a class without the very character that comes next?"""
    inside = piece[2:-1] if piece.startswith("[^") else ""
    return "\\" not in inside and following not in ("", *"\\.[(|)*+?{^$") and following in inside
