"""Engines and steps of a `Reader` in memory: rows as a test puts them, columns of what was put over time."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor
from typing import Any

from server.query.types import MOST_ENGINES, MOST_STEPS, EngineInfo, EngineMetric, StepInfo

Points = list[tuple[float, float]]


class MemoryEngines:
    """The part of `MemoryReader` that tells of single engines and steps."""

    calls: list[str]

    def __init__(self) -> None:
        self._engines: dict[str, dict[str, EngineInfo]] = {}
        self._history: dict[tuple[str, str, EngineMetric], Points] = {}
        self._steps: dict[str, list[StepInfo]] = {}

    def _run(self, name: str) -> Any:
        raise NotImplementedError

    def put_engines(self, run: str, *rows: EngineInfo) -> None:
        self._engines[run] = self._engines.get(run, {}) | {row.key: row for row in rows}

    def put_history(self, run: str, key: str, metric: EngineMetric, points: Iterable[tuple[float, float]]) -> None:
        self._history[run, key, metric] = [*self._history.get((run, key, metric), ()), *points]

    def put_steps(self, run: str, *rows: StepInfo) -> None:
        self._steps[run] = [*self._steps.get(run, ()), *rows]

    # The protocol.

    def engines_now(self, run: str, at: float | None = None) -> list[EngineInfo]:
        self._run(run)
        self.calls.append(f"engines {run}")
        return [row for _, row in sorted(self._engines.get(run, {}).items())]

    def engine_cells(
        self, run: str, metric: EngineMetric, keys: Sequence[str], start: float, end: float, width: float
    ) -> Mapping[str, Mapping[float, float]]:
        self._run(run)
        self.calls.append(f"engine_cells {run}")
        if len(keys) > MOST_ENGINES:
            raise ValueError(f"at most {MOST_ENGINES} engines at once, not {len(keys)}")
        found = {key: self._history.get((run, key, metric), []) for key in keys}
        return {key: _columns([one for one in points if start <= one[0] < end], width) for key, points in found.items()}

    def newest_steps(self, run: str, last: int = 40) -> list[StepInfo]:
        self._run(run)
        self.calls.append(f"steps {run}")
        return self._steps.get(run, [])[-min(last, MOST_STEPS) :]


def _columns(points: Points, width: float) -> dict[float, float]:
    columns: dict[float, list[float]] = {}
    for ts, value in points:
        columns.setdefault(floor(ts / width) * width, []).append(value)
    return {at: sum(values) / len(values) for at, values in columns.items()}
