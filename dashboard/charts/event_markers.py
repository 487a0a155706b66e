"""Restarts and alerts as cells: marks on every chart, in addition to weight updates (`dashboard.charts.weight_updates`)
and verdicts.

``w.r.N`` and ``w.a.N``: [[seconds into column N, text], ...]; an alert has its severity as third item.
`assets/widgets/events.mjs` draws them and shows their texts under the cursor.
"""

from collections.abc import Iterable, Sequence

from dashboard.charts.time_columns import Grid, grid
from dashboard.state.cache import TimedCache
from dashboard.state.status import View
from dashboard.state.url import Span
from server.query import Reader
from server.query.types import AlertInfo, EventInfo

RESTARTS = ("restart", "resume")
"""Kinds of events that begin an incarnation of the trainer."""

_MOST = 100


def restarts(events: Iterable[EventInfo], columns: Grid) -> View:
    """The newest `_MOST` events that began an incarnation."""
    begun = [event for event in events if event.kind in RESTARTS]
    return _columns("w.r", [(event.ts, [f"{event.kind}: {event.detail}".rstrip(": ")]) for event in begun], columns)


def fired(reader: Reader, run: str, now: Sequence[AlertInfo], span: Span, shared: TimedCache) -> View:
    """When alerts of the run began to fire within the time shown: those of ``now``, and those that are over."""
    columns = grid(span)

    def read() -> list[AlertInfo]:
        return reader.alerts.history(run, _MOST)

    past = shared.get(("fired", run, columns), columns.keep_seconds, read)
    at = [(one.fired_at, [one.name, one.severity]) for one in (*past, *now) if one.fired_at is not None]
    return _columns("w.a", [(ts, row) for ts, row in at if columns.start <= ts < columns.end], columns)


def _columns(prefix: str, rows: list[tuple[float, list[str]]], columns: Grid) -> View:
    found: dict[str, list[list[float | str]]] = {}
    for ts, row in sorted(rows)[-_MOST:]:
        number = columns.number(ts)
        found.setdefault(f"{prefix}.{number}", []).append([round(ts - number * columns.width, 1), *row])
    return dict(found)
