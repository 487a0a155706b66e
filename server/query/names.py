"""Series names as Prometheus writes them: ``staleness_versions{level="trajectory",stat="mean"}``."""

import re
from collections.abc import Mapping
from functools import lru_cache

from collectors.model import Labels

_PAIR_TEXT = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_NAME = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{_PAIR_TEXT}(?:,{_PAIR_TEXT})*)?)\}})?", re.DOTALL)
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


@lru_cache(maxsize=1 << 14)
def format_name(signal: str, labels: Labels) -> str:
    """The written form; labels sorted, values escaped as in the exposition format."""
    if not labels:
        return signal
    pairs = (f'{name}="{"".join(_ESCAPES.get(char, char) for char in value)}"' for name, value in sorted(labels))
    return f"{signal}{{{','.join(pairs)}}}"


def parse_name(text: str) -> tuple[str, Labels]:
    """The reverse of `format_name`; labels come back sorted.

    Raises:
        ValueError: not a series name.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a series name: {text[:80]!r}")
    return match[1], tuple(sorted((name, _unescape(value)) for name, value in _PAIR.findall(match[2] or "")))


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value, flags=re.DOTALL)


def mode_words(mode: str, facts: Mapping[str, str | float]) -> str:
    """``async``, ``unknown``, or ``unknown (usually async)``."""
    usual = facts.get("usual_mode")
    return mode or (f"unknown (usually {usual})" if usual else "unknown")
