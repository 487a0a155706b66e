"""What happened in the time shown, as cells: for the lane above the charts, and for the pins of a chart's own alerts.

``weight_updates.N``: weight updates, [[seconds into column N, version or None], ...]; so a tick sends the newest
column, and that when there is a new version. ``other_events.N``: other events, [[seconds, kind, text], ...]; a change
of behaviour has its name at the end.
``fired_alerts.N``: alerts that began to fire, [[seconds, name, severity, signal], ...]. `assets/widgets/events.mjs`
draws them.
"""

from collections.abc import Iterable, Sequence

from dashboard.charts.time_columns import Grid, grid
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from dashboard.widgets.status import View
from server.query import Reader
from server.query.types import AlertInfo, EventInfo

MOST_UPDATES = 1500
"""Weight updates that are sent: a day with one a minute. Of more, the first few of each column, which do not change."""
_PER_COLUMN = MOST_UPDATES // 60
# Alerts, and events of other kinds: the newest.
_MOST = 200
_READ = 10_000
_PUBLISHED = "weights_published"
_LABELS = {
    "restart": "Restart",
    "resume": "Resumed",
    "checkpoint": "Checkpoint",
    "eval": "Evaluation",
    "config_change": "Configuration",
    "drift": "Behaviour changed",
    "source": "Source changed",
    "fault": "Fault",
    "hardware": "GPU error",
}
_KINDS = (_PUBLISHED, *_LABELS)

Rows = dict[str, list[list[float | str | None]]]


def events(reader: Reader, run: str, now: Sequence[AlertInfo], span: Span, shared: TimedCache) -> View:
    """Keys ``w.*`` for the time shown, as read a few seconds ago at most. ``now``: the active alerts of the run."""
    columns = grid(span)

    def read() -> tuple[list[EventInfo], list[AlertInfo]]:
        found = reader.runs.events(run, columns.start, columns.end, _KINDS, _READ)
        return found, reader.alerts.history(run, _MOST)

    found, past = shared.get(("events", run, columns), columns.keep_seconds, read)
    return cells(found, columns) | _alerts((*past, *now), columns)


def cells(found: Sequence[EventInfo], columns: Grid) -> View:
    """``weight_updates.width``: of a column, seconds; ``.n``: number of weight updates; ``.whole``: all are sent."""
    updates = [event for event in found if event.kind == _PUBLISHED]
    others = [event for event in found if event.kind in _LABELS][-_MOST:]
    whole = len(updates) <= MOST_UPDATES
    sent = _columns("weight_updates", [(one.ts, [one.version]) for one in updates], columns)
    view: View = {key: rows if whole else rows[:_PER_COLUMN] for key, rows in sent.items()}
    view |= _columns("other_events", [(one.ts, _other(one)) for one in others], columns)
    return view | {
        "weight_updates.width": columns.width,
        "weight_updates.n": len(updates),
        "weight_updates.whole": int(whole),
        "weight_updates.note": _note(updates),
    }


def _other(event: EventInfo) -> list[str | int | None]:
    """``drift:tool_calls::40`` is the key of a change of `tool_calls`."""
    of = [event.key.split(":")[1]] if event.kind == "drift" else []
    return [event.kind, _text(event), *of]


def _text(event: EventInfo) -> str:
    return f"{_LABELS[event.kind]}: {event.detail}".rstrip(": ")


def _alerts(found: Iterable[AlertInfo], columns: Grid) -> View:
    at = [(one.fired_at, [one.name, one.severity, one.signal]) for one in found if one.fired_at is not None]
    inside = [(ts, row) for ts, row in at if columns.start <= ts < columns.end]
    return dict(_columns("fired_alerts", sorted(inside)[-_MOST:], columns))


def _columns(prefix: str, rows: Sequence[tuple[float, Sequence[str | int | None]]], columns: Grid) -> Rows:
    found: Rows = {}
    for ts, row in rows:
        number = columns.number(ts)
        found.setdefault(f"{prefix}.{number}", []).append([round(ts - number * columns.width, 1), *row])
    return found


def _note(updates: Sequence[EventInfo]) -> str:
    """How many, and of which versions."""
    if not updates:
        return ""
    versions = [event.version for event in updates if event.version is not None]
    which = f", v{min(versions):,} to v{max(versions):,}" if len(versions) > 1 else ""
    more = "at least " if len(updates) >= _READ else ""
    return f"{more}{len(updates):,} weight update{'' if len(updates) == 1 else 's'}{which}"
