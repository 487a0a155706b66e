"""Records that the simulation passes to its writers: batches shipped and steps done. Frozen."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.rollouts import Group, Rollout


class Groups:
    """Base class of records with the `groups` of one trainer step."""

    groups: tuple[Group, ...]

    def members(self) -> Iterator[Rollout]:
        """Returns the rollouts that the trainer computes on; lost ones are masked out of the loss."""
        return (rollout for group in self.groups for rollout in group.rollouts)

    def rollouts(self) -> Iterator[Rollout]:
        """Returns the rollouts that are trained."""
        return (rollout for rollout in self.members() if not rollout.error)

    @property
    def response_tokens(self) -> int:
        return sum(rollout.response_tokens for rollout in self.rollouts())

    @property
    def total_tokens(self) -> int:
        """Prompt, tool and response tokens: what the trainer computes on."""
        return sum(self.lengths())

    def lengths(self) -> Iterator[int]:
        """Tokens of each sample that the trainer computes on."""
        return (rollout.input_tokens + rollout.response_tokens for rollout in self.members())

    def group_ratio(self, *outcomes: str) -> float:
        """Share of groups whose outcome (`all`, `none`, `some`) is one of these."""
        return sum(group.outcome in outcomes for group in self.groups) / len(self.groups)


@dataclass(frozen=True)
class Batch(Groups):
    """One batch of the trainer: `groups` are trained, `dropped` went stale since the batch before."""

    step: int
    groups: tuple[Group, ...]
    dropped: tuple[Group, ...]
    taken_at: float
    gate_seconds: float

    @property
    def input_tokens(self) -> int:
        return sum(rollout.input_tokens for rollout in self.rollouts())

    def staleness(self) -> list[tuple[int, int, int]]:
        """(total, in flight, in queue) of each rollout, in policy versions, as prime-rl's `episode_staleness`."""
        return [self._staleness(rollout) for rollout in self.rollouts()]

    def _staleness(self, rollout: Rollout) -> tuple[int, int, int]:
        total = self.step - 1 - rollout.group.version
        in_flight = min(total, rollout.version_end - rollout.group.version)
        return total, in_flight, total - in_flight


@dataclass(frozen=True)
class Timing:
    """The parts of one trainer step, in seconds; they add up to the step."""

    wait: float
    load: float
    compute: float
    broadcast: float
    checkpoint: float

    @property
    def total(self) -> float:
        return self.wait + self.load + self.compute + self.broadcast + self.checkpoint


@dataclass(frozen=True)
class Means:
    """Time-weighted means over one step."""

    queue: float
    running: float
    waiting: float
    kv_usage: float
    in_flight: float


@dataclass(frozen=True)
class Step:
    """One trainer step that is done; `start` and `end` in seconds since the run began."""

    batch: Batch
    start: float
    end: float
    timing: Timing
    means: Means
    version: int
    requests_finished: int
    generation_tokens: int


class Watcher:
    """A writer, for any stack: after each advance its files are up to date."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Observer(Watcher):
    """Writers override the calls that they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def dispatched(self, now: float, rollout: Rollout) -> None: ...

    def ready(self, now: float, rollout: Rollout) -> None: ...

    def scored(self, now: float, rollout: Rollout) -> None: ...

    def evaluated(self, now: float, rollout: Rollout) -> None: ...

    def filtered(self, now: float, group: Group) -> None: ...

    def gate(self, now: float, is_open: bool) -> None: ...

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None: ...

    def published(self, now: float, version: int) -> None: ...

    def stepped(self, step: Step) -> None: ...


# ---- files
# Files that grow with the simulation and have event times as modification times; and a base class of writers.


class AppendFile:
    """A growing text file; its modification time is the event time of its last line (epoch seconds)."""

    def __init__(self, path: Path, start: float) -> None:
        self._path = path
        # Unbuffered: each flush is one write, so that a reader rarely reads half a line.
        self._file = path.open("wb", buffering=0)
        self._pending: list[str] = []
        self._stamp: float | None = start
        self.flush()

    def line(self, text: str, stamp: float) -> None:
        self._pending.append(text + "\n")
        self._stamp = stamp

    def flush(self) -> None:
        if self._stamp is None:
            return
        self._file.write("".join(self._pending).encode())
        self._pending.clear()
        os.utime(self._path, (self._stamp, self._stamp))
        self._stamp = None

    def close(self) -> None:
        self._file.close()


class Files(Watcher):
    """Base class of writers: each file is `_open`ed once. `start`: the run's, epoch seconds.

    It comes before the observer in the class's bases, because the observer's `flush` and `close` are empty.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self._files: list[AppendFile] = []

    def _open(self, path: Path) -> AppendFile:
        file = AppendFile(path, self._start)
        self._files.append(file)
        return file

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def close(self) -> None:
        for file in self._files:
            file.close()
