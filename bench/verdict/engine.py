"""One engine: requests share it by a decode curve, use cache as they grow, and are preempted when it is full."""

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

# Share of the cache that admission fills; only running requests grow beyond it.
ADMITTED = 0.97
# Seconds of prefill per token of context, in decode steps of one token.
PREFILL = 0.002


@dataclass(eq=False, slots=True)
class Request:
    """One turn. ``left``: tokens still to be generated; ``context``: tokens it holds; ``end``: progress at its end."""

    owner: object
    left: float
    context: float
    end: float = 0.0
    begun: float = 0.0
    state: str = "waiting"


@dataclass(eq=False, slots=True)
class Engine:
    """Processor sharing: every running request has the same progress per second, and less the more there are.

    ``crowded``: its cache once delayed or preempted a request.
    """

    slots: int
    token_s: float
    load_s: float
    capacity: float
    bend: float = 1.0
    at: float = 0.0
    progress: float = 0.0
    running: int = 0
    held: float = 0.0
    paused: int = 0
    frozen: bool = False
    waiting: deque[Request] = field(default_factory=deque)
    tokens: float = 0.0
    preemptions: int = 0
    finished: int = 0
    crowded: bool = False
    stamp: int = 0
    _ends: list[tuple[float, int, Request]] = field(default_factory=list)
    _order: int = 0

    @property
    def load(self) -> int:
        return self.running + len(self.waiting)

    def speed(self) -> float:
        """Tokens per second of each request."""
        if self.paused or self.frozen or not self.running:
            return 0.0
        return 1.0 / (self.token_s + self.load_s * self.running**self.bend)

    def advance(self, now: float) -> None:
        made = (now - self.at) * self.speed()
        self.progress += made
        self.held += made * self.running
        self.tokens += made * self.running
        self.at = now

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        self.admit()

    def admit(self) -> None:
        while self.waiting and self.running < self.slots:
            one = self.waiting[0]
            if one.state == "dead":
                self.waiting.popleft()
                continue
            if self.running and self.held + one.context > ADMITTED * self.capacity:
                self.crowded = True
                return
            self._run(self.waiting.popleft())

    def _run(self, one: Request) -> None:
        one.state, one.begun = "running", self.progress
        one.end = self.progress + one.left + PREFILL * one.context
        self.running += 1
        self.held += one.context
        self._order += 1
        heappush(self._ends, (one.end, self._order, one))

    def running_requests(self) -> list[Request]:
        return [entry[2] for entry in self._ends if entry[2].state == "running"]

    def leave(self, one: Request) -> None:
        """Removes a running request; its progress is kept."""
        grown = self.progress - one.begun
        self.running -= 1
        self.held = max(0.0, self.held - one.context - grown)
        one.left = max(0.0, one.end - self.progress)
        one.context += grown

    def abort(self, one: Request) -> None:
        if one.state == "running":
            self.leave(one)
        one.state = "dead"
        self.admit()

    def done(self) -> list[Request]:
        """Removes and returns the requests that have ended by now."""
        found = []
        while self._ends and (self._ends[0][2].state != "running" or self._ends[0][0] <= self.progress + 1e-6):
            _, _, one = heappop(self._ends)
            if one.state == "running" and one.end <= self.progress + 1e-6:
                self.leave(one)
                one.state = "done"
                found.append(one)
        self.finished += len(found)
        return found

    def squeeze(self) -> None:
        """Preempts the youngest requests while the cache is full."""
        while self.held > self.capacity * (1 - 1e-9) and self.running > 1:
            alive = [entry for entry in self._ends if entry[2].state == "running"]
            youngest = max(alive, key=lambda entry: entry[1])[2]
            self._ends = sorted(entry for entry in alive if entry[2] is not youngest)
            self.leave(youngest)
            youngest.state = "waiting"
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            self.crowded = True

    def next(self) -> float:
        """Time of the next event: the end of a request, or a full cache."""
        speed = self.speed()
        while self._ends and self._ends[0][2].state != "running":
            heappop(self._ends)
        if not speed or not self._ends:
            return math.inf
        ends = (self._ends[0][0] - self.progress) / speed
        full = (self.capacity - self.held) / (speed * self.running) if self.running > 1 else math.inf
        return self.at + max(1e-9, min(ends, max(full, 0.0)))
