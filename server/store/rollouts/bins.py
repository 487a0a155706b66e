"""Distributions over time: bins of minutes or hours, added up by the column of a drawing they fall into."""

from sqlalchemy import Connection

from server.store.rollouts.walk import cursor_of, fetched

Bin = tuple[int, int, int]
"""(column's start in ms, bin, how many)."""

_WHERE = "run = ? AND tier = ? AND kind = ? AND bucket >= ? AND bucket < ? AND n > 0"


def columns(connection: Connection, run: int, kind: str, tier: int, span: tuple[int, int], width: int) -> list[Bin]:
    """By column and bin; ``width`` is a multiple of ``tier``, all times are epoch ms."""
    low, high = span[0] // tier * tier, span[1]
    if width > tier and connection.dialect.name == "sqlite":
        return _by_column(connection, (run, tier, kind), (low, high), width)
    column, count, group = "bucket", "n", ""
    if width > tier:
        column, count, group = f"bucket / {width} * {width}", "CAST(sum(n) AS bigint)", " GROUP BY 1, 2"
    sql = f"SELECT {column}, bin, {count} FROM rollout_bins WHERE {_WHERE}{group} ORDER BY 1, 2"
    return [(at, number, n) for at, number, n in fetched(connection, sql, (run, tier, kind, low, high))]


def _by_column(connection: Connection, key: tuple[int, int, str], span: tuple[int, int], width: int) -> list[Bin]:
    # Column by column: SQLite sorts what it groups, and many short sorts take half as long as a long one.
    low, high = span
    sql = f"SELECT bin, sum(n) FROM rollout_bins WHERE {_WHERE} GROUP BY bin ORDER BY bin"
    return [
        (at, number, n)
        for at in range(low // width * width, high, width)
        for number, n in cursor_of(connection, sql, (*key, max(at, low), min(at + width, high)))
    ]
