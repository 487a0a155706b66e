"""The runs of all fakes in one reader: for tests that go through all pages in one browser."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from msgspec import structs

from tests.dashboard import (
    fake,
    fake_actors,
    fake_alerts,
    fake_fleet,
    fake_preflight,
    fake_rollouts,
    fake_verdicts,
    fake_what_if,
)
from tests.dashboard.memory_reader import MemoryReader

BY_RUN = ("_runs", "_infos", "boxes", "preflights", "_records", "_engines", "_history", "_steps")


def reader() -> MemoryReader:
    """Of two runs of one name the later fake's: `math-sync` is the one that needs no sandbox."""
    made = fake_alerts.fill(fake_verdicts.judged(fake.reader(7200)))
    for module in (fake_actors, fake_fleet, fake_rollouts, fake_what_if, fake_preflight):
        one = module.reader()
        for name in BY_RUN:
            getattr(made, name).update(getattr(one, name))
    return made


def inherit(made: MemoryReader, run: str, donors: Sequence[str]) -> None:
    """A run of that name with all that several others know; of what each has but once the first one's."""
    runs = made._runs
    first = runs[donors[0]]
    runs[run] = replace(first, info=structs.replace(first.info, name=run), signals={}, points={}, log=[])
    for donor in donors:
        runs[run].signals.update(runs[donor].signals)
        runs[run].points.update(runs[donor].points)
        tables: tuple[dict[str, Any], ...] = (made.boxes, made.preflights, made._records, made._steps)
        for table in tables:
            if donor in table:
                table.setdefault(run, copy(table[donor]))
