"""Rollscope's own health in words, from the families of its page `/metrics`: the same numbers as there. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from server.store.types import megabytes, size_words

TOPICS: Mapping[str, str] = {
    "store": "Store",
    "tables": "Largest tables",
    "writes": "Writes",
    "steps": "Steps",
    "queues": "Queues",
    "retention": "Retention",
    "web": "Web process",
    "collect": "Collecting process",
}
"""Key -> title, in the order in which they are shown."""

_PREFIX = "rollscope_"
_TABLES = 4


class Family(Protocol):
    """A family as prometheus_client has it; each sample has ``name``, ``labels`` and ``value``."""

    @property
    def samples(self) -> Sequence[Any]: ...


Labels = tuple[tuple[str, str], ...]
Page = Mapping[tuple[str, Labels], float]


def words(families: Iterable[Family]) -> dict[str, str]:
    """Topic -> sentence; topics without a number are left out."""
    page: dict[tuple[str, Labels], float] = {}
    for family in families:
        for sample in family.samples:
            page[sample.name.removeprefix(_PREFIX), tuple(sorted(sample.labels.items()))] = sample.value
    found = {
        "store": _store(page), "tables": _tables(page), "writes": _writes(page), "steps": _steps(page),
        "queues": _queues(page), "retention": _retention(page),
        **{name: _process(page, name) for name in ("web", "collect")},
    }  # fmt: skip
    return {topic: found[topic] for topic in TOPICS if found[topic]}


def _one(page: Page, name: str, **labels: str) -> float | None:
    return page.get((name, tuple(sorted(labels.items()))))


def _each(page: Page, name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: value for (of, labels), value in page.items() if of == name and label in dict(labels)}


def _collects(page: Page) -> bool:
    """Does this server's own process, or a child of it, collect? Otherwise its numbers of the writer are of nothing."""
    return any(name == "tick_seconds_count" for name, _ in page)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _store(page: Page) -> str:
    cut = _each(page, "store_deleted_before_timestamp_seconds", "kind")
    used, disk = _one(page, "store_bytes"), _one(page, "store_disk_bytes")
    grows, limit = _one(page, "store_growth_bytes_per_hour"), _one(page, "store_limit_bytes")
    reached = _one(page, "store_limit_reached_seconds")
    if used is None:
        return ""
    return _joined(
        megabytes(used) + (f" in use, {megabytes(disk)} on disk" if disk is not None else ""),
        f"{'grows' if grows >= 0 else 'shrinks'} by {megabytes(abs(grows))}/h" if grows is not None else "",
        size_words(None if limit is None else round(limit), cut),
        f"reached in {_hours(reached)} at this rate" if reached is not None else "",
    )


def _tables(page: Page) -> str:
    sizes = sorted(_each(page, "store_table_bytes", "table").items(), key=lambda row: (-row[1], row[0]))
    return _joined(*(f"{name} {megabytes(size)}" for name, size in sizes[:_TABLES]))


def _writes(page: Page) -> str:
    if not _collects(page):
        return ""
    rows, dropped, queued, retries = (
        _one(page, name)
        for name in ("store_rows_per_hour", "store_dropped_rows_total", "store_queued_rows", "store_retries_total")
    )
    return _joined(
        f"{rows:,.0f} rows/h" if rows is not None else "",
        f"{dropped:,.0f} rows dropped since the start" if dropped is not None else "",
        f"{retries:,.0f} transactions repeated" if retries else "",
        f"{queued:,.0f} rows wait" if queued else "",
    )


def _steps(page: Page) -> str:
    """The mean of each run's steps since the start: one is due every 5 s."""
    counts, seconds = _each(page, "tick_seconds_count", "run"), _each(page, "tick_seconds_sum", "run")
    means = {run: seconds[run] / count for run, count in counts.items() if count and run in seconds}
    worst = max(means.items(), key=lambda row: (row[1], row[0]), default=None)
    if worst is None:
        return ""
    return f"{worst[1]:.2g} s on average, of 5 s" + (f" ({worst[0]}, the slowest run)" if len(means) > 1 else "")


def _queues(page: Page) -> str:
    pushes, rows = _one(page, "inbox_pushes"), _one(page, "inbox_rows")
    if pushes is None or rows is None:
        return ""
    waiting = sum(_each(page, "outbox_notifications", "receiver").values())
    return f"{pushes:,.0f} pushes ({rows:,.0f} rows) and {waiting:,.0f} notifications wait"


def _retention(page: Page) -> str:
    lag, hours = _one(page, "retention_lag_seconds"), _one(page, "packing_backlog_hours")
    if lag is None or not _collects(page):
        return ""
    return _joined(
        f"behind for {_hours(lag)}" if lag >= 60 else "nothing overdue",
        f"{hours:,.0f} hours of samples wait to be packed" if hours else "",
    )


def _process(page: Page, name: str) -> str:
    cpu, resident, files = (
        _one(page, f"process_{of}", process=name) for of in ("cpu_seconds_total", "resident_bytes", "open_files")
    )
    if cpu is None:
        return ""
    return _joined(
        f"{_hours(cpu)} of CPU", f"{megabytes(resident)} of memory" if resident is not None else "",
        f"{files:,.0f} open files" if files is not None else "",
    )  # fmt: skip


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"
