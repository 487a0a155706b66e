"""Packs pushed rollouts and events for the inbox, as the lines that were received.

The collecting process parses the lines again, except in the process that received them, which caches the records.
"""

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from collectors.model import Reading
from server.push.records import MAKE, Kind, item_of

_MARK = b"records\n"

# Records in the cache: two ticks at 2,000 records per second, about 2 kB each. Others are read from the inbox only.
MAX_CACHED = 20_000
# Cached records not taken within this time (s) were collected by another process.
CACHE_SECONDS = 60.0


class ParsedPushCache:
    """Caches validated records by the packed bytes of their lines, each returned once. Thread-safe.

    Nothing is cached before the first `take`, because another process may be the collector. ``clock``: seconds.
    """

    def __init__(self, max_records: int = MAX_CACHED, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_records, self._clock, self._has_reader, self._count, self._guard = (
            max_records,
            clock,
            False,
            0,
            Lock(),
        )
        self._records: OrderedDict[bytes, tuple[float, Sequence[Any]]] = OrderedDict()

    def put(self, data: bytes, records: Sequence[Any]) -> None:
        """Caches records if there is room. The oldest records are taken first, so the newest are not cached."""
        with self._guard:
            now = self._clock()
            while self._records and now - next(iter(self._records.values()))[0] > CACHE_SECONDS:
                self._count -= len(self._records.popitem(last=False)[1][1])
            if self._has_reader and data not in self._records and self._count + len(records) <= self._max_records:
                self._records[data] = now, records
                self._count += len(records)

    def take(self, data: bytes) -> Sequence[Any] | None:
        """Removes and returns cached records; None: not cached."""
        with self._guard:
            self._has_reader = True
            _, records = self._records.pop(data, (0.0, None))
            self._count -= len(records or ())
            return records


held = ParsedPushCache()
"""The cache of this process."""


def pack(kind: Kind, lines: Sequence[bytes]) -> bytes:
    """Returns bytes for the inbox, from lines that `server.push.records.parse` accepted."""
    return _MARK + zlib.compress(b"\n".join([kind.encode(), *lines]), 1)


def packed(data: bytes) -> bool:
    """Was this made by `pack`, and not by `server.push.body` or `server.push.readings`?"""
    return data.startswith(_MARK)


def unpack(data: bytes, now: float) -> Reading:
    """Returns the records that `pack` packed. ``now``: when they were pushed.

    Raises:
        ValueError: not made by `pack`.
    """
    if (records := held.take(data)) is not None:
        return Reading(rollouts=tuple(records))
    try:
        kind, *lines = zlib.decompress(data.removeprefix(_MARK)).split(b"\n")
    except zlib.error:
        raise ValueError("not packed records") from None
    make, found, dropped, why = MAKE["events" if kind == b"events" else "rollouts"], [], 0, ""
    for line in lines:
        try:
            found.append(make(item_of(line)[0], now))
        except ValueError as error:  # another version of Rollscope accepted the line
            dropped, why = dropped + 1, why or str(error)
    if kind == b"events":
        return Reading(events=tuple(found), dropped=dropped, why_dropped=why)
    return Reading(rollouts=tuple(found), dropped=dropped, why_dropped=why)
