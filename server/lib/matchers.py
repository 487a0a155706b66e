"""Label matchers in the syntax of Prometheus: ``stat="mean"``, ``target=~"engine-.*"``. Pure.

API users supply regular expressions too, and one with exponential backtracking would stop every tick. Therefore only a
subset is accepted, in which matching time is bounded by a small power of the value's length.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

OPERATORS = ("=", "!=", "=~", "!~")
MAX_PATTERN = 200
# Two unbounded repeats over a label of 1,000 characters are a million steps: the most a tick can bear.
MAX_REPEATS = 2
_TEXT = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|((?:[^"\s=~][^"\s]*)?))\s*', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label; a label that is absent reads as the empty string, as in Prometheus."""

    name: str
    op: str
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.name, "")
        if self.op == "=":
            return value == self.value
        if self.op == "!=":
            return value != self.value
        hit = _compiled(self.value).fullmatch(value) is not None
        return hit if self.op == "=~" else not hit

    def __str__(self) -> str:
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.op}"{escaped}"'


def matcher(name: str, op: str, value: str) -> Matcher:
    """Returns a validated matcher.

    Raises:
        ValueError: unknown operator, or refused pattern; the message is for a user.
    """
    if op not in OPERATORS:
        raise ValueError(f"operator {op!r} is not one of {' '.join(OPERATORS)}")
    if op in ("=~", "!~"):
        _check_pattern(value)
    return Matcher(name, op, value)


def parse(text: str) -> Matcher:
    """Parses ``name="value"``, with ``=``, ``!=``, ``=~`` or ``!~``; quotes are optional.

    Raises:
        ValueError: see `matcher`.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f'{text[:80]!r} is not a matcher such as severity="critical"')
    name, op, quoted, bare = match.groups()
    value = bare if quoted is None else re.sub(r"\\(.)", _unescape, quoted, flags=re.DOTALL)
    return matcher(name, op, value)


def all_match(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Do all matchers match? An empty list matches everything."""
    return all(matcher.matches(labels) for matcher in matchers)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1] if match[1] in '"\\' else match[0]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


def _check_pattern(pattern: str) -> None:
    """Refuses patterns whose matching time is not bounded."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern may have {MAX_PATTERN} characters")
    bare = re.sub(r"\[(?:\\.|[^\]\\])+\]", "c", re.sub(r"\\.", "c", pattern))
    if "(?" in bare.replace("(?:", "(") or re.search(r"\\[1-9]", pattern):
        raise ValueError("look-arounds, flags and back-references are not supported in a pattern")
    if re.search(r"\)[*+?{]", bare) or "{" in bare:
        raise ValueError("repeated groups and {n,m} are not supported in a pattern")
    if sum(bare.count(char) for char in "*+?") > MAX_REPEATS:
        raise ValueError(f"at most {MAX_REPEATS} of * + ? in a pattern; alternatives (a|b) are free")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
