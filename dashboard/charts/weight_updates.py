"""Weight updates and change points as cells: for the ticks and lines that every chart has.

``w.N``: [[seconds into column N, version or None], ...]; so a tick sends the newest column, and that when
there is a new version. ``w.d.N``: [[seconds into column N, which behaviour or source changed], ...].
`assets/widgets/events.mjs` draws them.
"""

from collections.abc import Mapping, Sequence

from dashboard.charts.event_markers import RESTARTS, restarts
from dashboard.charts.time_columns import Grid, grid
from dashboard.state.cache import TimedCache
from dashboard.state.status import View
from dashboard.state.url import Span
from server.query import Reader
from server.query.types import EventInfo

MOST = 200
"""Drawn at once: more are a grey wall."""

_CHANGES = ("drift", "source")
_PUBLISHED = "weights_published"
_KINDS = (_PUBLISHED, *_CHANGES, *RESTARTS)
_READ = 10_000
# Of more than `MOST`, the first few of each column: which these are does not change while time goes on.
_PER_COLUMN = 3


def updates(reader: Reader, run: str, span: Span, shared: TimedCache) -> View:
    """Keys ``w.*`` for the time shown, as read a few seconds ago at most."""
    columns = grid(span)

    def read() -> list[EventInfo]:
        return reader.runs.events(run, columns.start, columns.end, _KINDS, _READ)

    events = shared.get(("updates", run, columns), columns.keep_seconds, read)
    return cells(events, columns) | restarts(events, columns)


def cells(events: Sequence[EventInfo], columns: Grid) -> View:
    """``w.width``: of a column, seconds; ``w.n``: how many there are; ``w.note``: what the ticks are."""
    changes = [event for event in events if event.kind in _CHANGES]
    return _published([event for event in events if event.kind == _PUBLISHED], columns) | _changed(changes, columns)


def _changed(events: Sequence[EventInfo], columns: Grid) -> View:
    """All of them: a behaviour changes a few times in a run."""
    found: dict[str, list[list[float | str]]] = {}
    for event in events:
        number = columns.number(event.ts)
        found.setdefault(f"w.d.{number}", []).append([round(event.ts - number * columns.width, 1), event.detail])
    return dict(found)


def _published(events: Sequence[EventInfo], columns: Grid) -> View:
    found: dict[int, list[EventInfo]] = {}
    for event in events:
        found.setdefault(columns.number(event.ts), []).append(event)
    few = len(events) <= MOST
    drawn = {number: rows if few else rows[:_PER_COLUMN] for number, rows in found.items()}
    ticks: View = {
        f"w.{number}": [[round(event.ts - number * columns.width, 1), event.version] for event in rows]
        for number, rows in drawn.items()
    }
    return ticks | {"w.width": columns.width, "w.n": len(events), "w.note": _words(events, drawn)}


def _words(events: Sequence[EventInfo], drawn: Mapping[int, Sequence[EventInfo]]) -> str:
    """How many, of which versions, and that some are left out."""
    if not events:
        return ""
    versions = [event.version for event in events if event.version is not None]
    which = f", v{min(versions):,} to v{max(versions):,}" if len(versions) > 1 else ""
    more = "at least " if len(events) >= _READ else ""
    plural = "" if len(events) == 1 else "s"
    shown = sum(map(len, drawn.values()))
    thinned = f"; {shown} shown" if shown < len(events) else ""
    return f"{more}{len(events):,} weight update{plural} in this range{which}{thinned}"
