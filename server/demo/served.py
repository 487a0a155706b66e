"""Base of every stack's process: event time, one lock, the servers, the control channel on standard input and output.

One lock guards the simulation. Pages show it at its current event time or, if it follows the wall clock, at the time of
the request.
"""

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TextIO, TypeVar

from server.demo.engine import Engine
from server.demo.http_server import Reply, by_path, serve, url_of
from server.demo.instrument import Poster
from server.demo.records import Watcher
from server.demo.scenarios import Scenario

# Interval of following the wall clock, s. Four times per second is documented; this leaves room on a busy machine.
_FOLLOW_SECONDS = 0.2

T = TypeVar("T")


class Simulated(Protocol):
    """A cluster of any stack. Times are seconds since the run began."""

    scenario: Scenario
    now: float

    @property
    def engines(self) -> Sequence[Engine]: ...
    @property
    def observers(self) -> Sequence[Watcher]: ...
    def advance(self, until: float) -> None: ...


class Page(Protocol):
    """State of an engine at a moment, in seconds since the run began."""

    content_type: ClassVar[str]

    def render(self, now: float) -> bytes: ...


class Teller(Protocol):
    """Collects the lines that are posted."""

    def take(self) -> list[str]: ...


@dataclass(frozen=True)
class Pace:
    """Event time as a function of the wall clock: `sim` at `wall`, then `speed` times as fast. Epoch seconds."""

    wall: float
    sim: float
    speed: float

    def at(self, wall: float) -> float:
        return self.sim + (wall - self.wall) * self.speed


class Served(ABC):
    """A simulation with its servers and files. All times are epoch seconds. `ready`: contents of the ready line."""

    def __init__(self, cluster: Simulated, start: float, pages: Sequence[Page]) -> None:
        self._simulated = cluster
        self.pages = pages
        self.start = start
        self.ready: dict[str, object] = {}
        self.pace: Pace | None = None
        # Destination of posts, of an instrumented scenario.
        self.poster: Poster | None = None
        self._lock = threading.Lock()
        # The engines' servers come first, in their order.
        self._servers = [serve(f"engine-{i}", by_path(self._routes(i))) for i in range(len(pages))]
        self.urls = [url_of(server) for server in self._servers]
        self._buried: set[int] = set()

    @property
    @abstractmethod
    def teller(self) -> Teller | None:
        """Returns the collector of posts; None if the scenario posts nothing."""

    @abstractmethod
    def tell_what_is_under_way(self) -> None:
        """Switches to live: from now on starts are posted too, if the scenario posts."""

    def page(self, index: int) -> bytes:
        return self._look(lambda: self.pages[index].render(self._simulated.now))

    def _routes(self, index: int) -> Mapping[str, Callable[[], Reply]]:
        """Returns the answers of an engine's server, by path."""
        return {"/metrics": lambda: Reply(200, self.pages[index].content_type, self.page(index))}

    def _engine_targets(self, collector: str, seconds: float) -> list[dict[str, object]]:
        """Returns every engine as a target, with its interval."""
        return [
            {"source": url, "name": f"engine-{index}", "collector": collector, "seconds": seconds}
            for index, url in enumerate(self.urls)
        ]

    def _told(self, seed: int, folder: Path, run_dir: Path) -> dict[str, object]:
        """Returns the ready line's contents that all stacks share."""
        row = self._simulated.scenario
        return {
            "ready": True,
            "run": row.run,
            "scenario": row.name,
            "seed": seed,
            "start": self.start,
            "engines": self.urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
        }

    def advance(self, until: float) -> float:
        """Simulates up to `until`; returns the event time reached, which never goes back."""
        with self._lock:
            reached = self._advance(until)
            lines = self.teller.take() if self.teller and self.poster else []
        # Outside the lock, because the receiver may request a page meanwhile.
        if lines and self.poster:
            self.poster.post(lines)
        return reached

    def push_to(self, url: str, token: str) -> None:
        """Sets the server for posts; earlier lines are posted with the next advance."""
        self.poster = Poster(url, self._simulated.scenario.run, token)

    def _advance(self, until: float) -> float:
        if until - self.start > self._simulated.now:
            self._simulated.advance(until - self.start)
            self._bury()
        return self.start + self._simulated.now

    def _bury(self) -> None:
        """Closes the port of a dead engine."""
        for engine in self._simulated.engines:
            if engine.is_dead and engine.index not in self._buried:
                self._buried.add(engine.index)
                self._servers[engine.index].shutdown()
                self._servers[engine.index].server_close()

    def follow(self, pace: Pace) -> None:
        """Follows the wall clock from now on."""
        is_first = self.pace is None
        self.go_live()
        self.pace = pace
        if is_first:
            threading.Thread(target=self._keep_up, name="follow", daemon=True).start()

    def go_live(self) -> None:
        """From now on rollouts in flight are posted too, if the scenario posts."""
        with self._lock:
            self.tell_what_is_under_way()

    def _keep_up(self) -> None:
        while self.pace is not None:
            self.advance(self.pace.at(time.time()))
            time.sleep(_FOLLOW_SECONDS)

    def _look(self, answer: Callable[[], T]) -> T:
        with self._lock:
            self._catch_up()
            return answer()

    def _catch_up(self) -> None:
        if self.pace is not None:
            self._advance(self.pace.at(time.time()))

    def close(self) -> None:
        """Stops serving and closes the files; the process ends by `leave`."""
        self.pace = None
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for observer in self._simulated.observers:
            observer.close()


# -- control channel -------------------------------------------------------------------------------------------


def control(demo: Served, commands: Iterable[str], answers: TextIO) -> None:
    """Answers one JSON object per line until the commands end."""
    _say(answers, demo.ready)
    for line in commands:
        try:
            _say(answers, _obey(demo, json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            _say(answers, {"error": f"{type(error).__name__}: {error}"})


def _obey(demo: Served, command: dict[str, object]) -> dict[str, object]:
    if "advance_to" in command:
        return {"t": demo.advance(_float(command["advance_to"]))}
    if "push_to" in command:
        demo.push_to(str(command["push_to"]), str(command.get("token", "")))
        return {"pushing": True}
    follow = command["follow"]
    if not isinstance(follow, dict):
        raise TypeError("follow must be an object")
    demo.follow(Pace(_float(follow["wall"]), _float(follow["sim"]), _float(follow["speed"])))
    return {"following": True}


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _say(answers: TextIO, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def leave() -> None:
    """Exits at once: files are flushed after every advance, and no thread may delay the exit."""
    os._exit(0)
