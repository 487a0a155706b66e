"""A recorded real run: engine pages, the trainer's trackio database row by row, and the labels of its phases.

A recording is a folder with truth.json next to recording.tar.xz, or next to the unpacked files (`vllm*/`,
`trainer/trackio/*.db`, `trainer/trainer_log.jsonl`). `vllm/`, `vllm1/`, ... are the engines of one fleet.
"""

import datetime
import json
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "tests" / "testdata" / "real_runs"
ARCHIVE = "recording.tar.xz"
TABLES = ("configs", "metrics", "traces")
STEP_KEY = "train/global_step"
LOSS_KEY = "train/loss"
RUNTIME_KEY = "train_runtime"
# A label holds from its phase's beginning; the verdict may take this long to follow it.
RIGHT_WITHIN_SECONDS = 60.0
# Seconds. An outage needs no statistics, because pages stop, so the verdict has half the time.
STALLED_WITHIN_SECONDS = 30.0
# Label of a phase in which the run was not built to have one limiter.
UNSCORED = "not scored"
# The outcome of a run with too little data.
UNKNOWN = "unknown"
STARTED_EVENTS = ("product started with --wait", "product started")


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape of an engine. `body` is None where the engine did not answer."""

    at: float
    body: bytes | None


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of the trainer's trackio database, with the time at which the trainer wrote it."""

    at: float
    table: str
    values: Mapping[str, Any]

    @property
    def is_closing(self) -> bool:
        """The trainer's last row has only the number of the last step."""
        metrics = self.metrics()
        return STEP_KEY in metrics and LOSS_KEY not in metrics

    def metrics(self) -> dict[str, Any]:
        """The logged values of a row of table metrics; empty for other tables."""
        found: dict[str, Any] = json.loads(self.values["metrics"]) if self.table == "metrics" else {}
        return found


@dataclass(frozen=True, slots=True)
class Log:
    """The trainer's log. `schema`: the statements that create the database.

    `closing`: the summary at the trainer's end, which TensorBoard gets and trackio does not.
    """

    schema: tuple[str, ...]
    rows: tuple[LogRow, ...]
    closing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Phase:
    """A labelled span: the outcomes that are right in it, and how soon the verdict must be one of them.

    `scored` is False where the run was not built to have one limiter there.
    """

    label: str
    begin: float
    end: float
    right: tuple[str, ...]
    within: float = RIGHT_WITHIN_SECONDS
    scored: bool = True


@dataclass(frozen=True, slots=True)
class Recording:
    """A run as it was recorded. `attach_at`: when the product was started next to it."""

    name: str
    engines: tuple[tuple[Page, ...], ...]
    log: Log | None
    phases: tuple[Phase, ...]
    attach_at: float

    @property
    def begin(self) -> float:
        return min(pages[0].at for pages in self.engines)

    @property
    def end(self) -> float:
        """The end of the last phase: what follows is the shutdown of the recording script."""
        return self.phases[-1].end


def names() -> list[str]:
    """The recordings of the repository."""
    return sorted(path.parent.name for path in RECORDED.glob("*/truth.json"))


def load(source: str | Path) -> Recording:
    """A recording by its name in the repository, or by its folder."""
    folder = RECORDED / source if (RECORDED / source).is_dir() else Path(source)
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    with _unpacked(folder) as files:
        engines = tuple(_pages(engine) for engine in sorted(files.glob("vllm*")) if engine.is_dir())
        log = _log(files / "trainer", engines[0][0].at)
    phases = tuple(_phase(item) for item in truth.get("phases", ()) if "t0" in item)
    whole = Phase("all", engines[0][0].at, engines[0][-1].at, (), scored=False)
    phases = phases or (whole,)
    begins = {event["event"]: event["ts"] for event in truth.get("events", ())}
    started = [begins[name] for name in STARTED_EVENTS if name in begins]
    return Recording(truth["regime"], engines, log, phases, max(started, default=engines[0][0].at))


@contextmanager
def _unpacked(folder: Path) -> Iterator[Path]:
    if not (folder / ARCHIVE).exists():
        yield folder
        return
    with tempfile.TemporaryDirectory() as place, tarfile.open(folder / ARCHIVE) as files:
        files.extractall(place, filter="data")
        yield Path(place)


def _phase(item: Mapping[str, Any]) -> Phase:
    right = tuple(item["ok"])
    return Phase(
        f"{item['from']} .. {item['to']}", item["t0"], item["t1"], right,
        within=STALLED_WITHIN_SECONDS if right == ("stalled",) else RIGHT_WITHIN_SECONDS,
        scored=UNSCORED not in item["cause"],
    )  # fmt: skip


def _pages(folder: Path) -> tuple[Page, ...]:
    """File names hold the time of the scrape in ms; a file .err stands for a refused connection."""
    found = []
    for file in folder.iterdir():
        match = re.search(r"(\d{13})\.(prom|err)$", file.name)
        if match:
            found.append(Page(int(match[1]) / 1000, file.read_bytes() if match[2] == "prom" else None))
    return tuple(sorted(found, key=lambda page: page.at))


def _log(trainer: Path, begin: float) -> Log:
    """Rows with the time at which they were written: a step's row when the trainer logged it, others by themselves."""
    lines = [json.loads(line) for line in (trainer / "trainer_log.jsonl").read_text("utf-8").splitlines()]
    logged = {line["step"]: line["ts"] for line in lines}
    summary: Mapping[str, float] = next((line for line in reversed(lines) if RUNTIME_KEY in line), {})
    ending = {f"train/{key}": value for key, value in summary.items() if key not in ("ts", "step")}
    source = next((trainer / "trackio").glob("*.db"))
    # immutable: a recording may stand in a folder that must not be written to.
    with closing(sqlite3.connect(f"file:{source}?immutable=1", uri=True)) as database:
        database.row_factory = sqlite3.Row
        schema = database.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC"
        )
        statements = tuple(row["sql"] for row in schema)
        rows = [
            LogRow(begin, table, dict(row)) for table in TABLES for row in database.execute(f"SELECT * FROM {table}")
        ]
    return Log(statements, tuple(sorted((_dated(row, logged) for row in rows), key=lambda row: row.at)), ending)


def _dated(row: LogRow, logged: Mapping[int, float]) -> LogRow:
    own = row.values["created_at" if row.table == "configs" else "timestamp"]
    at = datetime.datetime.fromisoformat(own).timestamp()
    step = row.metrics().get(STEP_KEY)
    return LogRow(at if step is None else logged.get(int(step), at), row.table, row.values)
