"""Pushed rollouts and events while they wait in the inbox: their lines as they came, packed.

Who collects reads them again, but in the process that took them: there the checked records are kept for a moment.
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

# What two ticks bring at 2,000 a second; some 2 kB each. More of them wait in the inbox alone.
HELD = 20_000
# Who would have asked by then took them over from us: another process collects.
HELD_SECONDS = 60.0


class ParsedPushCache:
    """Records by the packed bytes of their lines, each given away once. Thread-safe.

    Nothing is held before anybody asks: where another process collects nobody does. ``clock``: seconds.
    """

    def __init__(self, most: int = HELD, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock, self._asked, self._count, self._guard = most, clock, False, 0, Lock()
        self._found: OrderedDict[bytes, tuple[float, Sequence[Any]]] = OrderedDict()

    def put(self, data: bytes, records: Sequence[Any]) -> None:
        """Keep them if there is room: what waits longest is asked for first."""
        with self._guard:
            now = self._clock()
            while self._found and now - next(iter(self._found.values()))[0] > HELD_SECONDS:
                self._count -= len(self._found.popitem(last=False)[1][1])
            if self._asked and data not in self._found and self._count + len(records) <= self._most:
                self._found[data] = now, records
                self._count += len(records)

    def take(self, data: bytes) -> Sequence[Any] | None:
        """Give them away; None: they are not held."""
        with self._guard:
            self._asked = True
            _, found = self._found.pop(data, (0.0, None))
            self._count -= len(found or ())
            return found


held = ParsedPushCache()
"""Of this process."""


def pack(kind: Kind, lines: Sequence[bytes]) -> bytes:
    """Bytes for the inbox, of lines that `rollout_push.parse` took."""
    return _MARK + zlib.compress(b"\n".join([kind.encode(), *lines]), 1)


def packed(data: bytes) -> bool:
    """Is this of `pack`, and not of `server.push.body` or `server.push.readings`?"""
    return data.startswith(_MARK)


def unpack(data: bytes, now: float) -> Reading:
    """The reverse of `pack`. ``now``: when it was pushed.

    Raises:
        ValueError: not what `pack` made.
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
        except ValueError as error:  # another version took it
            dropped, why = dropped + 1, why or str(error)
    if kind == b"events":
        return Reading(events=tuple(found), dropped=dropped, why_dropped=why)
    return Reading(rollouts=tuple(found), dropped=dropped, why_dropped=why)
