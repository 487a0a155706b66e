"""Changes since a browser's last request: texts by fingerprint, points by slot (see `dashboard.callbacks.tick`)."""

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.widgets.format import milliseconds, short
from dashboard.widgets.status import Cell, View
from server.query.types import Delta, Series

Json = dict[str, Any]


class SentViews:
    """The last texts sent, by fingerprint: the browser sends its fingerprint and gets the differences.

    Shared by all browsers. Bounded; a fingerprint that fell out (or is another replica's) gets everything.
    """

    def __init__(self, size: int = 128) -> None:
        self._seen: OrderedDict[str, View] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def remember(self, cells: View) -> str:
        """The fingerprint of these texts."""
        key = f"{zlib.crc32(json.dumps(cells, sort_keys=True).encode()):08x}"
        with self._lock:
            self._seen[key] = cells
            self._seen.move_to_end(key)
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)
        return key

    def changes(self, have: str, cells: View) -> tuple[View, Mapping[str, Json]]:
        """(cells that differ from those of fingerprint ``have``, the fields of objects of which only some differ).

        A cell that went away is None.
        """
        with self._lock:
            old = self._seen.get(have, {})
        changed = {key: cell for key, cell in cells.items() if key not in old or old[key] != cell}
        fields = {key: part for key, cell in changed.items() if (part := _fields(old.get(key), cell))}
        whole = {key: cell for key, cell in changed.items() if key not in fields}
        return whole | {key: None for key in old if key not in cells}, fields


def _fields(old: Cell, new: Cell) -> Json:
    """The fields that changed; none where one went away: the browser then needs the whole."""
    if not isinstance(old, dict) or not isinstance(new, dict) or not old.keys() <= new.keys():
        return {}
    return {name: value for name, value in new.items() if name not in old or old[name] != value}


def points(delta: Delta, slots: Mapping[str, Sequence[str]]) -> dict[str, list[list[Any]]]:
    """New points by slot: ``{"queue.0": [[times], [values]]}``, times in epoch milliseconds."""
    found: dict[str, list[list[Any]]] = {}
    for slot, names in slots.items():
        new = next((delta.points[name] for name in names if name in delta.points), ())
        if new:
            found[slot] = [[milliseconds(ts, 0) for ts, _ in new], [short(value) for _, value in new]]
    return found


def spark(series: Series, peaks: bool = False) -> list[list[Any]]:
    """A card's small line; of the highest value in each bucket where a mean would hide what counts."""
    return [
        [milliseconds(ts, 0) for ts in series.ts],
        [short(value) for value in (series.high if peaks else series.mean)],
    ]


def by_slot(slots: Mapping[str, Sequence[str]], found: Mapping[str, Series]) -> dict[str, Series]:
    """Per slot the first of its possible series that has points."""
    chosen = {slot: _first([found[name] for name in names if name in found]) for slot, names in slots.items()}
    return {slot: series for slot, series in chosen.items() if series is not None}


def _first(candidates: Sequence[Series]) -> Series | None:
    return next((s for s in candidates if any(value is not None for value in s.mean)), None)
