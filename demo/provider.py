"""A sandbox provider with one account: quotas, starting slots, image builds, failures, cost.

PENDING: requested, its image perhaps being built. PROVISIONING: it has a starting slot. RUNNING, then TERMINATED or
ERROR. Slow starts arise because a free starting slot goes to the newest request: placement is retried with exponential
back-off, so a request that has waited long retries rarely. A sandbox starts in seconds or hardly ever, and those that
did start look fast.
"""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo.faults import Agenda, Level
from demo.scenarios import JudgePlan, SandboxPlan

LIVE = ("PENDING", "PROVISIONING", "RUNNING")
# Ended sandboxes are listed for this long, s; a demo may run for days.
_REMEMBERED_SECONDS = 7_200.0
_WINDOW_SECONDS = 300.0
# Zipf: the second repository has half the tasks of the first.
_IMAGE_EXPONENT = 1.0
_ERRORS = {
    "IMAGE_PULL_FAILED": "Failed to pull image: registry answered 503 Service Unavailable",
    "TIMEOUT": "Sandbox did not start within 300 seconds",
    "OOM_KILLED": "Container exceeded its memory limit of 4 GB",
}
QUOTA_TEXT = "Sandbox quota exceeded: the account is at its limit of {limit} concurrent sandboxes"


@dataclass(slots=True, eq=False)
class Sandbox:
    """One sandbox. Times are seconds since the run began, None until they happen."""

    id: str
    name: str
    image: str
    label: str
    created: float
    on_ready: Callable[[float], None]
    on_failed: Callable[[float], None]
    start_seconds: float = 0.0
    fate: str = ""
    stuck_seconds: float = 0.0
    status: str = "PENDING"
    updated: float = 0.0
    started: float | None = None
    ended: float | None = None
    build_id: str | None = None
    error_type: str | None = None
    error_message: str | None = None

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


class Provider:
    """The account's sandboxes and their events. `records` holds them oldest first."""

    def __init__(self, plan: SandboxPlan, run: str, seed: int, agenda: Agenda) -> None:
        self.plan = plan
        self.records: dict[str, Sandbox] = {}
        self.live: dict[str, Sandbox] = {}
        self.failures: Counter[str] = Counter()
        self.created = 0
        self.completed: deque[tuple[float, float]] = deque()
        # In the order in which they ended.
        self.over: deque[Sandbox] = deque()
        self.billed = 0
        self.running = Level()
        self.starting = 0
        # During an outage it starts nothing.
        self.is_out = False
        self._run = run
        self._seed = seed
        self._agenda = agenda
        self._draw = Random(f"{seed}:sandboxes")
        self._queue: list[Sandbox] = []
        self._built: set[str] = set()
        self._building: dict[str, list[Sandbox]] = {}
        self._releasing = 0
        self._next_straggler = self._draw.randint(*plan.first_straggler)
        self._add_dangling()

    def _add_dangling(self) -> None:
        """Sandboxes from before the run, with negative times."""
        births = sorted(-self._draw.uniform(9_000.0, 32_000.0) for _ in range(self.plan.dangling))
        for number, born in enumerate(births):
            name, image = _hash(32, self._seed, "dangling", number), self.image_name(number % 5)
            sandbox = self._record(name, image, self.plan.dangling_run, born, _nobody, _nobody)
            sandbox.status, sandbox.started = "RUNNING", born + self._draw.uniform(12.0, 40.0)
            sandbox.updated = sandbox.started
        self.created = 0
        self.running.set(0.0, self.plan.dangling)

    def image_name(self, number: int) -> str:
        return f"swe-tasks/repo-{number:03d}:2026-10"

    def draw_image(self) -> str:
        """Returns the image of one task; popular ones are more frequent."""
        ranks = range(self.plan.images)
        number = self._draw.choices(ranks, [1 / (rank + 1) ** _IMAGE_EXPONENT for rank in ranks])[0]
        return self.image_name(number)

    # -- requests ----------------------------------------------------------------------------------------------

    def create(
        self, name: str, image: str, now: float, on_ready: Callable[[float], None], on_failed: Callable[[float], None]
    ) -> Sandbox:
        """Creates a sandbox in PENDING. Calls one of the two when it runs or fails; never before this returns."""
        is_full = len(self.live) + self._releasing >= self.plan.concurrent_limit
        sandbox = self._record(name, image, self._run, now, on_ready, on_failed)
        self._decide(sandbox)
        if is_full:
            text = QUOTA_TEXT.format(limit=self.plan.concurrent_limit)
            self._agenda.plan(now, lambda at: self._fail(sandbox, at, None, text))
        elif sandbox.stuck_seconds:
            self._agenda.plan(now + sandbox.stuck_seconds, lambda at: self._enqueue(sandbox, at))
        elif image in self._built:
            self._enqueue(sandbox, now)
        else:
            self._build(sandbox, now)
        return sandbox

    def _record(
        self, name: str, image: str, label: str, now: float,
        on_ready: Callable[[float], None], on_failed: Callable[[float], None],
    ) -> Sandbox:  # fmt: skip
        id = "sb" + _hash(22, self._seed, label, self.created, now)
        sandbox = Sandbox(id, name, image, label, now, on_ready, on_failed, updated=now)
        self.created += 1
        self.records[id] = self.live[id] = sandbox
        return sandbox

    def _decide(self, sandbox: Sandbox) -> None:
        """Draws its outcome at the request, so that later events cannot change it."""
        plan, draw = self.plan, self._draw
        ordinary = plan.start_seconds_median * draw.lognormvariate(0.0, plan.start_sigma)
        slow = draw.uniform(plan.slow_seconds_min, plan.slow_seconds_max)
        sandbox.start_seconds = slow if draw.random() < plan.slow_share else ordinary
        chance = draw.random()
        for fate, share in (
            ("IMAGE_PULL_FAILED", plan.image_pull_failed),
            ("TIMEOUT", plan.timed_out),
            ("OOM_KILLED", plan.oom_killed),
        ):
            if 0 <= chance < share:
                sandbox.fate = fate
            chance -= share
        if sandbox.fate == "TIMEOUT":
            sandbox.start_seconds = plan.start_deadline_seconds
        stuck = draw.uniform(*plan.straggler_seconds)
        if self.created == self._next_straggler:
            self._next_straggler += draw.randint(*plan.straggler_every)
            sandbox.stuck_seconds, sandbox.fate = stuck, ""

    def _build(self, sandbox: Sandbox, now: float) -> None:
        """The first sandbox of an image waits for the build, and later ones wait with it."""
        sandbox.build_id = "ib" + _hash(22, self._seed, sandbox.image)
        waiting = self._building.setdefault(sandbox.image, [])
        waiting.append(sandbox)
        if len(waiting) == 1:
            seconds = self.plan.build_seconds_median * self._draw.lognormvariate(0.0, 0.4)
            self._agenda.plan(now + seconds, lambda at: self._is_built(sandbox.image, at))

    def _is_built(self, image: str, now: float) -> None:
        self._built.add(image)
        for sandbox in self._building.pop(image):
            sandbox.build_id, sandbox.updated = None, now
            self._enqueue(sandbox, now)

    # -- starting ----------------------------------------------------------------------------------------------

    def _enqueue(self, sandbox: Sandbox, now: float) -> None:
        self._queue.append(sandbox)
        self._place(now)

    def _place(self, now: float) -> None:
        while self._queue and not self.is_out and self.starting < self.plan.starting_limit:
            sandbox = self._queue.pop()
            sandbox.status, sandbox.updated = "PROVISIONING", now
            self.starting += 1
            self._plan_start(sandbox, now)

    def _plan_start(self, sandbox: Sandbox, now: float) -> None:
        self._agenda.plan(now + sandbox.start_seconds, lambda at: self._booted(sandbox, at))

    def _booted(self, sandbox: Sandbox, now: float) -> None:
        self.starting -= 1
        if sandbox.fate in ("IMAGE_PULL_FAILED", "TIMEOUT"):
            self._fail(sandbox, now, sandbox.fate, _ERRORS[sandbox.fate])
        else:
            self._run_it(sandbox, now)
        self._place(now)

    def _run_it(self, sandbox: Sandbox, now: float) -> None:
        sandbox.status, sandbox.updated, sandbox.started = "RUNNING", now, now
        self.running.add(now, 1)
        self.completed.append((now, now - sandbox.created))
        while self.completed[0][0] < now - _WINDOW_SECONDS:
            self.completed.popleft()
        if sandbox.fate == "OOM_KILLED":
            # The image's start-up needs more memory than available: killed before it is usable.
            kill = now + self._draw.uniform(2.0, 9.0)
            self._agenda.plan(kill, lambda at: self._fail(sandbox, at, "OOM_KILLED", _ERRORS["OOM_KILLED"]))
        else:
            sandbox.on_ready(now)

    # -- over --------------------------------------------------------------------------------------------------

    def _fail(self, sandbox: Sandbox, now: float, kind: str | None, text: str) -> None:
        self._end(sandbox, now, "ERROR")
        sandbox.error_type, sandbox.error_message = kind, text
        self.failures[kind or "quota"] += 1
        sandbox.on_failed(now)

    def delete(self, sandbox: Sandbox, now: float) -> None:
        """Ends at once for its owner, and a little later for the account's limit."""
        self._end(sandbox, now, "TERMINATED")
        self._releasing += 1
        self._agenda.plan(now + self.plan.release_seconds, self._released)

    def _released(self, now: float) -> None:
        self._releasing -= 1

    def _end(self, sandbox: Sandbox, now: float, status: str) -> None:
        if sandbox.status == "RUNNING":
            self.running.add(now, -1)
        sandbox.status, sandbox.updated, sandbox.ended = status, now, now
        del self.live[sandbox.id]
        self.billed += sandbox.started is not None
        self.over.append(sandbox)
        while (self.over[0].ended or 0.0) < now - _REMEMBERED_SECONDS:
            del self.records[self.over.popleft().id]

    # -- state -------------------------------------------------------------------------------------------------

    def spent_usd(self, now: float) -> float:
        """Returns the cost since the run began; running sandboxes are billed, waiting ones are not."""
        return self.running.integral(now) / 3_600.0 * self.plan.usd_per_hour

    def pending(self) -> list[Sandbox]:
        """Returns requested sandboxes that are not running, oldest first."""
        return [sandbox for sandbox in self.live.values() if sandbox.status != "RUNNING"]

    def counts(self) -> dict[str, int]:
        """Returns live sandboxes by state; dangling ones count as running."""
        found = Counter(
            "building_image" if sandbox.build_id else sandbox.status.lower() for sandbox in self.live.values()
        )
        return {state: found[state] for state in ("building_image", "pending", "provisioning", "running")}


def _nobody(now: float) -> None:
    """Callback of a sandbox without a waiting owner."""


def _hash(length: int, *parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:length]


# ---- judges
# The run's second account: some rollouts get a judge in a clean sandbox on Modal, in addition to the tests.

# GenericResult.GenericStatus of Modal's protocol; 0 while it is live.
TERMINATED, TIMEOUT, INIT_FAILURE, KERNEL_OOM_KILL = 3, 4, 5, 10
WORDS = {TIMEOUT: "TIMEOUT", INIT_FAILURE: "INIT_FAILURE", KERNEL_OOM_KILL: "KERNEL_OOM_KILL"}
"""Statuses of sandboxes that failed."""

INIT_TEXT = "Failed to mount the task's volume"
# Ended sandboxes are listed for this long, s; a demo may run for days.


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
