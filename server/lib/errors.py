"""Errors of a configuration, all at once: what is wrong, at which key, and what would be right."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from server.lib.secret import NO_SECRET, Secret

# TOML's names of Python's types.
_TYPES: Mapping[type, str] = {
    str: "a string", int: "an integer", float: "a number", bool: "a boolean", list: "a list", dict: "a table",
}  # fmt: skip


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant; None if none is similar."""
    near = difflib.get_close_matches(name, list(candidates), 1)
    return near[0] if near else None


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """``did you mean port?``, or every valid name if none is similar."""
    names = sorted(candidates)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"known: {', '.join(names)}"


class ConfigError(Exception):
    """The configuration is wrong. ``problems``: one sentence each, in the file's order."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Problems:
    """Collects errors while values are checked, so that one run of the program shows all of them."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, key: str, text: str) -> None:
        self.messages.append(f"{key}: {text}")

    def take(self, table: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any, where: str) -> Any:
        value = table.get(key, default)
        # Python's bool is an int, but `port = true` is a mistake.
        if value is default or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
            return value
        expected = _TYPES[kind] if isinstance(kind, type) else "a number"
        self.add(f"{where}.{key}", f"must be {expected}, is {_TYPES.get(type(value), type(value).__name__)}")
        return default

    def unknown(self, table: Mapping[str, Any], allowed: set[str], where: str) -> None:
        for key in table.keys() - allowed:
            self.add(f"{where}.{key}", f"unknown key; {suggestion(key, allowed)}")

    def secret_file(self, path: str, key: str) -> Secret:
        """Read a secret's file without its line end; "" and a problem if it is unreadable or empty."""
        try:
            text = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            self.add(key, f"cannot read {path}")
            return NO_SECRET
        if not text:
            self.add(key, f"{path} is empty")
        return Secret(text)
