"""Publication times of policy versions, from which ages are computed. Bounded; reports come in any order."""

from bisect import bisect_left, bisect_right, insort

KEPT_VERSIONS = 10_000


class VersionClock:
    """Published versions with their times (epoch seconds). A lower version begins a new incarnation."""

    def __init__(self) -> None:
        self._told: list[tuple[float, int]] = []

    def publish(self, version: int, ts: float) -> None:
        """A version reported again (by the trainer, by an engine) was published at its first report."""
        at = bisect_left(self._told, (ts, version))
        if at and self._told[at - 1][1] == version:
            return
        if at < len(self._told) and self._told[at][1] == version:
            del self._told[at]
        insort(self._told, (ts, version))
        if len(self._told) > KEPT_VERSIONS:
            del self._told[0]

    def at(self, ts: float | None) -> int | None:
        """The version that was the newest at ``ts``; None before the first that is known."""
        place = 0 if ts is None else bisect_right(self._told, (ts, 1 << 62))
        return self._told[place - 1][1] if place else None

    def per_second(self, start: float, end: float) -> float | None:
        """Publications per second, from the first to the last within [start, end]; None for fewer than two."""
        times = self._told[bisect_left(self._told, (start, -(1 << 62))) : bisect_right(self._told, (end, 1 << 62))]
        if len(times) < 2 or times[-1][0] <= times[0][0]:
            return None
        return (len(times) - 1) / (times[-1][0] - times[0][0])

    def within(self, start: float, end: float) -> list[tuple[float, int]]:
        """(time, version) published within [start, end]."""
        return [(ts, version) for ts, version in self._told if start <= ts <= end]
