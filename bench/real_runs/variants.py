"""Runs composed of recordings: cases that were not recorded and can be derived from recorded ones.

A case is named as on the command line: `RUN`, `RUN+tensorboard`, `RUN+late`, `RUN+engines`, `RUN+stops`, `RUN>RUN`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bench.real_runs.recording import (
    STALLED_WITHIN_SECONDS,
    STEP_KEY,
    UNKNOWN,
    Log,
    LogRow,
    Page,
    Phase,
    Recording,
    load,
    names,
)

STOP_SECONDS = 90.0
# While the trainer is stopped the engine is read as often as before.
IDLE_PAGE_SECONDS = 4.5
# Share of a step after a row at which the trainer stops.
STOP_AFTER_STEPS = 0.4
# The second run of a change begins behind its start-up: with the step after this one.
SETTLED_STEP = 2
# Group numbers of the second run must not be those of the first.
GROUP_OFFSET = 1_000_000

IDLE_GAUGES = re.compile(
    rb"^(vllm:(?:num_requests_running|num_requests_waiting\w*|kv_cache_usage_perc)(?:\{.*\})?) \S+$", re.MULTILINE
)
SAMPLE = re.compile(r"^(\w[\w:]*(?:\{.*\})?) (\S+)$")
GROWS = re.compile(r"^[\w:]+_(?:total|count|sum|bucket)(?:\{|$)")
# The engine of a changed run is the same process: these stay those of the first run.
BORN = re.compile(r"^(?:process_start_time_seconds|[\w:]+_created)(?:\{|$)")


@dataclass(frozen=True, slots=True)
class Case:
    """A case: a recording, the log that the trainer writes, when the product attaches (None: as recorded)."""

    name: str
    recording: Recording
    sink: str = "trackio"
    attach_at: float | None = None


CHANGES = (
    "kv_bound>env_bound",
    "env_bound>trainer_bound",
    "trainer_bound>env_bound",
    "trainer_bound>kv_bound",
    "weight_sync>trainer_bound",
)
STOPS = ("env_bound", "trainer_bound", "weight_sync")


def cases() -> Iterator[str]:
    """Every case of the repository's recordings."""
    recorded = names()
    yield from recorded
    for suffix in ("tensorboard", "late", "engines"):
        yield from (f"{name}+{suffix}" for name in recorded)
    yield from (f"{name}+stops" for name in STOPS)
    yield from CHANGES


def case(name: str) -> Case:
    """The case of that name; its parts are names or folders of recordings."""
    first, arrow, second = name.partition(">")
    if arrow:
        return Case(name, changed(load(first), load(second)))
    source, _, suffix = name.partition("+")
    return VARIANTS[suffix](name, load(source))


def late(name: str, recording: Recording) -> Case:
    """The product is started in the middle of the longest phase."""
    longest = max(recording.phases, key=lambda phase: phase.end - phase.begin)
    return Case(name, recording, attach_at=(longest.begin + longest.end) / 2)


def engines_only(name: str, recording: Recording) -> Case:
    """The run without the trainer's log. Engines alone rarely suffice, so `unknown` is a right outcome, too."""
    phases = tuple(replace(phase, right=(*phase.right, UNKNOWN)) for phase in recording.phases)
    return Case(name, replace(recording, log=None, phases=phases))


def stopped(recording: Recording, seconds: float = STOP_SECONDS) -> Recording:
    """The trainer stops for so long in the middle of a step, two thirds through the last phase; the engine idles."""
    assert recording.log is not None
    phase = recording.phases[-1]
    steps = [at for at, _ in _steps(recording.log)]
    before = max(at for at in steps if at < phase.begin + (phase.end - phase.begin) * 2 / 3)
    after = min(at for at in steps if at > before)
    cut = before + STOP_AFTER_STEPS * (after - before)
    rows = (row if row.at <= cut else _shifted(row, seconds) for row in recording.log.rows)
    phases = (
        *recording.phases[:-1],
        replace(phase, end=cut),
        Phase("trainer stopped", cut, cut + seconds, ("stalled",), within=STALLED_WITHIN_SECONDS * 2),
        replace(phase, label="trainer goes on", begin=cut + seconds, end=phase.end + seconds),
    )
    engines = tuple(_idle_from(pages, cut, seconds) for pages in recording.engines)
    return replace(recording, engines=engines, log=replace(recording.log, rows=tuple(rows)), phases=phases)


def changed(first: Recording, second: Recording) -> Recording:
    """The first run to its last step, then the second from its `SETTLED_STEP` on, as one run on the same engine."""
    assert first.log is not None and second.log is not None
    done, begun = _steps(first.log), _steps(second.log)
    cut, last = max(pair for pair in done if pair[0] < first.phases[-1].end)
    start = next(at for at, step in begun if step == SETTLED_STEP)
    shift = cut - start
    earlier = [row for row in first.log.rows if row.at <= cut and not row.is_closing]
    later = [row for row in second.log.rows if row.at > start and row.table != "configs"]
    versions = max((_trace(row)["model_version"] for row in earlier if row.table == "traces"), default=0)
    run = next(row.values["run_id"] for row in earlier)
    rows = [
        *earlier,
        *(_joined(_shifted(row, shift), run, last - SETTLED_STEP, max(0, int(versions))) for row in later),
    ]
    engines = tuple(_continued(one, two, cut, start) for one, two in zip(first.engines, second.engines, strict=True))
    old, new = first.phases[-1], second.phases[0]
    phases = (
        *first.phases[:-1],
        replace(old, end=cut),
        replace(new, label=f"changed to {second.name}", begin=cut, end=new.end + shift),
    )
    return Recording(
        f"{first.name}>{second.name}",
        engines,
        Log(first.log.schema, tuple(rows), second.log.closing),
        phases,
        first.attach_at,
    )


VARIANTS: dict[str, Callable[[str, Recording], Case]] = {
    "": Case,
    "tensorboard": lambda name, recording: Case(name, recording, sink="tensorboard"),
    "late": late,
    "engines": engines_only,
    "stops": lambda name, recording: Case(name, stopped(recording)),
}


def _steps(log: Log) -> list[tuple[float, int]]:
    """(time, number) of each step's row, in order; the closing row repeats the last number."""
    found: dict[int, float] = {}
    for row in log.rows:
        if (step := row.metrics().get(STEP_KEY)) is not None:
            found.setdefault(int(step), row.at)
    return [(at, step) for step, at in sorted(found.items())]


def _shifted(row: LogRow, seconds: float) -> LogRow:
    """The row so much later; its own timestamp moves with it."""
    values = dict(row.values)
    column = "created_at" if row.table == "configs" else "timestamp"
    own = datetime.fromisoformat(values[column]).timestamp() + seconds
    values[column] = datetime.fromtimestamp(own, UTC).isoformat()
    return LogRow(row.at + seconds, row.table, values)


def _trace(row: LogRow) -> dict[str, float]:
    found: dict[str, float] = json.loads(row.values["metadata"])
    return found


def _joined(row: LogRow, run: str, steps: int, versions: int) -> LogRow:
    """A row of the second run as one of the first: numbers go on, ids stay unique."""
    values = {**row.values, "run_id": run}
    values.pop("id" if row.table == "metrics" else "", None)  # numbered by the database
    if STEP_KEY in (metrics := row.metrics()):
        values["metrics"] = json.dumps({**metrics, STEP_KEY: metrics[STEP_KEY] + steps})
    if row.table == "traces":
        meta = _trace(row)
        meta |= {"group_id": meta["group_id"] + GROUP_OFFSET, "model_version": meta["model_version"] + versions}
        values |= {"metadata": json.dumps(meta), "id": str(values["id"]).replace(str(row.values["run_id"]), run)}
    values["step"] = values.get("step", 0) + steps
    return LogRow(row.at, row.table, values)


def _idle_from(pages: tuple[Page, ...], cut: float, seconds: float) -> tuple[Page, ...]:
    """The engine has nothing to do from `cut` on: its counters stand, its gauges are zero."""
    before = [page for page in pages if page.at <= cut]
    newest = before[-1].body
    idle = IDLE_GAUGES.sub(rb"\1 0.0", newest) if newest is not None else None
    count = int(seconds / IDLE_PAGE_SECONDS)
    waits = [Page(cut + (number + 1) * IDLE_PAGE_SECONDS, idle) for number in range(count)]
    return (*before, *waits, *(Page(page.at + seconds, page.body) for page in pages if page.at > cut))


def _continued(one: tuple[Page, ...], two: tuple[Page, ...], cut: float, start: float) -> tuple[Page, ...]:
    """Pages of the second run behind those of the first, with counters that go on."""
    before = [page for page in one if page.at <= cut]
    after = [page for page in two if page.at > start]
    last = _values(next(page.body for page in reversed(before) if page.body is not None))
    base = _values(next(page.body for page in reversed(two) if page.at <= start and page.body is not None))
    shift = cut - start
    return (*before, *(Page(page.at + shift, page.body and _rebased(page.body, last, base)) for page in after))


def _values(body: bytes) -> dict[str, float]:
    found = (SAMPLE.match(line) for line in body.decode().splitlines())
    return {match[1]: float(match[2]) for match in found if match}


def _rebased(body: bytes, last: Mapping[str, float], base: Mapping[str, float]) -> bytes:
    return "\n".join(_line(line, last, base) for line in body.decode().splitlines()).encode() + b"\n"


def _line(line: str, last: Mapping[str, float], base: Mapping[str, float]) -> str:
    match = SAMPLE.match(line)
    if not match or match[1] not in last:
        return line
    if BORN.match(match[1]):
        return f"{match[1]} {last[match[1]]!r}"
    if GROWS.match(match[1]):
        return f"{match[1]} {float(match[2]) - base.get(match[1], 0.0) + last[match[1]]!r}"
    return line
