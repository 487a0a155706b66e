"""Spin-ups over time as columns of a heat map: ``h.N`` is the column that starts N widths after the epoch.

Columns stand on a grid of their own, so that time that goes on adds one and changes the newest, and a tick sends only
those. `assets/70-sandboxes.js` draws them, and the oldest pending over them.
"""

from collections.abc import Mapping
from math import floor

from dashboard.shell.page import Scope
from dashboard.state.status import View
from server.query import Reader

COLUMNS = 60
EDGES = ("1", "2", "5", "10", "20", "30", "60", "120", "300", "600", "1200", "1800", "3600", "7200", "+Inf")
"""Upper edges in seconds, as of the histogram on `/metrics`; edges found only in the data get a row, too."""

Counts = Mapping[int, Mapping[str, int]]

# Cache time: at least 4 s, else a twelfth of a column, so that a week is not read at each tick.
_LEAST_SECONDS, _LOOKS_PER_COLUMN = 4.0, 12


def heat(scope: Scope) -> View:
    """Keys ``h.*``; nothing for a scope without a time to show."""
    if scope.span is None:
        return {}
    # Exact at every tick: times of these decades are multiples of one power of two, and so is their difference.
    width = (scope.span.end - scope.span.start) / COLUMNS
    first = floor(scope.span.start / width)
    keep = max(_LEAST_SECONDS, width / _LOOKS_PER_COLUMN)
    reader, run = scope.reader, scope.run
    counts = scope.shared.get(("spinups", run, first, width), keep, lambda: _read(reader, run, first, width))
    return cells(counts, width)


def _read(reader: Reader, run: str, first: int, width: float) -> Counts:
    # One column more than fit: the first and the last are cut by the edges of the time shown.
    start, count = first * width, COLUMNS + 1
    found = reader.sandboxes.spinups(run, start, start + count * width, count)
    return {round(at / width): dict(counts) for at, counts in found}


def cells(counts: Counts, width: float) -> View:
    """``h.N``: [[edge, how many], ...]; ``h.edges`` the rows from below; ``h.most`` the fullest cell."""
    found_edges = {edge for column in counts.values() for edge in column}
    known = sorted({*EDGES, *found_edges}, key=_seconds)
    found: View = {f"h.{number}": [[edge, column[edge]] for edge in known if edge in column]
                   for number, column in counts.items()}  # fmt: skip
    full = max((n for column in counts.values() for n in column.values()), default=0)
    total = sum(n for column in counts.values() for n in column.values())
    none = "" if total else "No sandbox became ready in this range."
    return found | {"h.edges": list(known), "h.width": width, "h.most": full, "h.total": total, "h.none": none}


def _seconds(edge: str) -> float:
    try:
        return float(edge)
    except ValueError:
        return float("inf")
