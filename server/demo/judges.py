"""The run's second account: some rollouts get a judge in a clean sandbox on Modal, in addition to the tests.

A judge's result is logged with the reward and delays nothing, so the run is the same without judges. A sandbox is
placed at once and its image is built already, so it starts in seconds, as a second provider's would.
"""

import hashlib
import math
from collections import Counter, deque
from dataclasses import dataclass
from random import Random

from server.demo.events import Agenda
from server.demo.sandbox_plan import JudgePlan

# GenericResult.GenericStatus of Modal's protocol; 0 while it is live.
TERMINATED, TIMEOUT, INIT_FAILURE, KERNEL_OOM_KILL = 3, 4, 5, 10
WORDS = {TIMEOUT: "TIMEOUT", INIT_FAILURE: "INIT_FAILURE", KERNEL_OOM_KILL: "KERNEL_OOM_KILL"}
"""Statuses of sandboxes that failed."""

INIT_TEXT = "Failed to mount the task's volume"
# Ended sandboxes are listed for this long, s; a demo may run for days.
_REMEMBERED_SECONDS = 7_200.0
_WINDOW_SECONDS = 300.0


@dataclass(slots=True, eq=False)
class Judge:
    """One sandbox. Times are seconds since the run began, None until they happen."""

    id: str
    name: str
    run: str
    created: float
    start_seconds: float
    work_seconds: float
    timeout_seconds: int
    fate: int = TERMINATED
    enqueued: float | None = None
    started: float | None = None
    finished: float | None = None

    @property
    def status(self) -> int:
        return 0 if self.finished is None else self.fate

    @property
    def state(self) -> str:
        return "running" if self.started is not None else "queued" if self.enqueued is None else "starting"


class Judges:
    """The account's sandboxes. `records` has all, oldest first; `live` those that have not ended."""

    def __init__(self, plan: JudgePlan, run: str, older_run: str, seed: int, agenda: Agenda) -> None:
        self.plan = plan
        self.records: dict[str, Judge] = {}
        self.live: dict[str, Judge] = {}
        self.failures: Counter[str] = Counter()
        self.created = 0
        self.completed: deque[tuple[float, float]] = deque()
        self._run = run
        self._seed = seed
        self._agenda = agenda
        # Its own random stream, so that its draws change nothing else.
        self._draw = Random(f"{seed}:judges")
        self._over: deque[Judge] = deque()
        self._add_dangling(older_run)

    def _add_dangling(self, older_run: str) -> None:
        """Sandboxes from before the run, with negative times; their run had set a time-out of a day."""
        for born in sorted(-self._draw.uniform(9_000.0, 32_000.0) for _ in range(self.plan.dangling)):
            judge = self._record(_hash(32, self._seed, "left", born), older_run, born)
            judge.enqueued, judge.started, judge.timeout_seconds = born + 0.1, born + judge.start_seconds, 86_400
        self.created = 0

    def consider(self, name: str, now: float) -> None:
        """Judges a share of the generated rollouts. ``name``: the rollout's trace id."""
        if self._draw.random() < self.plan.share:
            self.create(name, now)

    def create(self, name: str, now: float) -> Judge:
        """Creates a judge's sandbox: queued, starting, running, over. All of its times are drawn now."""
        judge = self._record(name, self._run, now)
        placed = min(self._draw.uniform(*self.plan.place_seconds), judge.start_seconds)
        self._agenda.plan(now + placed, lambda at: self._placed(judge, at))
        self._agenda.plan(now + judge.start_seconds, lambda at: self._booted(judge, at))
        return judge

    def _record(self, name: str, run: str, now: float) -> Judge:
        plan, draw = self.plan, self._draw
        ordinary = plan.start_seconds_median * draw.lognormvariate(0.0, plan.start_sigma)
        slow = draw.uniform(*plan.slow_seconds)
        judge = Judge(
            id="sb-" + _hash(22, self._seed, "judge", self.created, now),
            name=name,
            run=run,
            created=now,
            start_seconds=slow if draw.random() < plan.slow_share else ordinary,
            work_seconds=plan.work_seconds_median * draw.lognormvariate(0.0, plan.work_sigma),
            timeout_seconds=plan.timeout_seconds,
        )
        self._decide(judge)
        self.created += 1
        self.records[judge.id] = self.live[judge.id] = judge
        return judge

    def _decide(self, judge: Judge) -> None:
        chance, killed = self._draw.random(), self._draw.uniform(2.0, 9.0)
        for fate, share, seconds in (
            (INIT_FAILURE, self.plan.init_failed, 0.0),
            (KERNEL_OOM_KILL, self.plan.oom_killed, killed),
            (TIMEOUT, self.plan.hung, math.inf),
        ):
            if 0 <= chance < share:
                judge.fate, judge.work_seconds = fate, seconds
            chance -= share
        if judge.work_seconds >= judge.timeout_seconds:
            judge.fate, judge.work_seconds = TIMEOUT, float(judge.timeout_seconds)

    def _placed(self, judge: Judge, now: float) -> None:
        judge.enqueued = now

    def _booted(self, judge: Judge, now: float) -> None:
        if judge.fate == INIT_FAILURE:
            self._end(judge, now)
            return
        judge.started = now
        self.completed.append((now, now - judge.created))
        while self.completed[0][0] < now - _WINDOW_SECONDS:
            self.completed.popleft()
        self._agenda.plan(now + judge.work_seconds, lambda at: self._end(judge, at))

    def _end(self, judge: Judge, now: float) -> None:
        judge.finished = now
        if judge.fate in WORDS:
            self.failures[WORDS[judge.fate]] += 1
        del self.live[judge.id]
        self._over.append(judge)
        while (self._over[0].finished or 0.0) < now - _REMEMBERED_SECONDS:
            del self.records[self._over.popleft().id]

    def counts(self) -> dict[str, int]:
        """Returns live sandboxes by state; dangling ones count as running."""
        found = Counter(judge.state for judge in self.live.values())
        return {state: found[state] for state in ("queued", "starting", "running")}

    def oldest_pending(self) -> Judge | None:
        """Returns the oldest one that was requested and is not running."""
        return next((judge for judge in self.live.values() if judge.started is None), None)


def _hash(length: int, *parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:length]
