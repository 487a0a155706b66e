"""Counts the numbers of a list in a row's bytes, so that token lists are never created."""

import re
from functools import cache


def length(raw: bytes, key: bytes) -> int | None:
    """The count of numbers in the flat list under a key; None if there is no list. The first one of the row counts."""
    found = _list(key).search(raw)
    if found is None:
        return None
    return found[1].count(b",") + 1 if found[1].strip() else 0


def ones(raw: bytes, key: bytes) -> int | None:
    """The count of ones in a mask (``1``, ``1.0`` or ``true``)."""
    found = _list(key).search(raw)
    return found[1].count(b"1") + found[1].count(b"true") if found is not None else None


def items(raw: bytes, key: bytes) -> bytes | None:
    """The list's bytes without its brackets."""
    found = _list(key).search(raw)
    return found[1] if found is not None else None


@cache
def _list(key: bytes) -> re.Pattern[bytes]:
    # NeMo-RL writes a batch of one: a list in a list.
    return re.compile(rb'"' + re.escape(key) + rb'": ?\[\s?\[?([-+0-9.eE,\struefalsnNI]*+)\]')
