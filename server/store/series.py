"""Series ids: each key gets a permanent number at its first use."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from sqlalchemy import Connection, select

from collectors.model import Labels
from server.store.bulk import upsert
from server.store.tables import runs, series
from server.store.types import SeriesKey

COLUMNS = ("run", "target", "metric", "labels_hash", "axis", "labels", "unit")


def pack_labels(labels: Labels) -> str:
    """Labels as JSON text, in their order; pure ASCII, so that no label can upset a database."""
    return json.dumps(labels, separators=(",", ":"))


@lru_cache(maxsize=1 << 14)
def unpack_labels(text: str) -> Labels:
    """The labels of :func:`pack_labels`. Kept: a look at a run reads the same few hundred texts every second."""
    return tuple((name, value) for name, value in json.loads(text))


def labels_hash(labels: Labels) -> int:
    """64 signed bits, the same in every process (Python's own hash is salted)."""
    return text_hash(pack_labels(labels))


def text_hash(text: str) -> int:
    """64 signed bits that stand for a text in a key."""
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def intern(connection: Connection, run: int, keys: Sequence[SeriesKey], units: Mapping[str, str]) -> None:
    """Make rows for the keys that have none. ``units``: metric -> unit, kept from the first time."""
    rows = [
        (run, k.target, k.metric, labels_hash(k.labels), k.axis, pack_labels(k.labels), units.get(k.metric, ""))
        for k in keys
    ]
    # One order for everybody: two processes with the same new keys would otherwise wait for each other.
    upsert(connection, series, COLUMNS, sorted(rows))


def listed(connection: Connection, run: str, target: str | None = None) -> Iterator[tuple[int, SeriesKey]]:
    """The series of a run, or of one of its targets, by id."""
    c = series.c
    query = select(c.id, c.target, c.metric, c.labels, c.axis).join(runs, runs.c.id == c.run)
    query = query.where(runs.c.name == run).order_by(c.id)
    if target is not None:
        query = query.where(c.target == target)
    for number, name, metric, labels, axis in connection.execute(query):
        yield number, SeriesKey(name, metric, unpack_labels(labels), axis)


def find(connection: Connection, run: str, key: SeriesKey) -> int | None:
    """The number of one series; None when nothing was ever written for it."""
    c = series.c
    query = select(c.id).join(runs, runs.c.id == c.run)
    query = query.where(runs.c.name == run, c.target == key.target, c.metric == key.metric)
    query = query.where(c.labels_hash == labels_hash(key.labels), c.axis == key.axis)
    return connection.execute(query).scalar()


def unit(connection: Connection, number: int) -> str:
    """The unit a series was first given; empty when none was."""
    return str(connection.execute(select(series.c.unit).where(series.c.id == number)).scalar() or "")


def metrics(connection: Connection, run: str) -> frozenset[str]:
    """Names of the metrics of a run's targets; without its own signals."""
    c = series.c
    query = select(c.metric).distinct().join(runs, runs.c.id == c.run).where(runs.c.name == run, c.target != "")
    return frozenset(connection.execute(query).scalars())
