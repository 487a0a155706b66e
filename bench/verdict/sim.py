"""Events of one asynchronous or synchronous run: rollouts, groups, queue, trainer. Shares nothing with the rules."""

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from bench.verdict.config import Config
from bench.verdict.engine import Engine, Request
from bench.verdict.things import Group, Page, Rollout, Row

PROGRESS = ("booting", "generating", "in_tool", "scoring")


class Sim:
    """One run, of ``most`` steps at most. ``run()`` plays it; ``rows`` and ``pages`` are its output.

    ``held_once``: production was held at some time.
    """

    def __init__(self, config: Config, *, watched: bool = True, most: float = math.inf) -> None:
        self.c, self._watched, self._most = config, watched, most
        self.held_once = False
        self._rng = random.Random(config.seed * 7919 + 1)
        self._steps_rng = random.Random(config.seed * 7919 + 2)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self.now = 0.0
        self.engines = [self._new_engine() for _ in range(config.engines)]
        self.census: Counter[str] = Counter()
        self.rows: list[Row] = []
        self.pages: list[Page] = []
        self.version = 0
        self.queue: deque[Group] = deque()
        self.useful: dict[int, float] = {}
        self._group: Group | None = None
        self.in_flight = 0
        self._accepted = 0
        self._dispatch_at = 0.0
        self._pumping = False
        self._held_since: float | None = None
        self._scorer: deque[Group] = deque()
        self._scoring = False
        self._dead = False
        self._hung = False
        self._gone: list[Engine] = []
        self._stopped_until = 0.0
        self._numbers = count(1)
        self._staleness = 0.0
        self._new_step(0.0)

    # ---- the clock

    def at(self, when: float, what: Callable[..., None], *args: object) -> None:
        heappush(self._heap, (when, next(self._order), what, args))

    def run(self) -> "Sim":
        c = self.c
        for when, name, value in c.changes:
            self.at(when, self._change, name, value)
        self.at(c.fault[0], self._fault, c.fault[1])
        if c.burst:
            self.at(c.burst_every, self._burst, True)
        if self._watched:
            self.at(0.0, self._page)
        if c.sync:
            self._sync_step()
        else:
            self._pump()
        heap, horizon = self._heap, c.horizon
        while heap and heap[0][0] <= horizon and len(self.rows) < self._most:
            self.now, _, what, args = heappop(heap)
            what(*args)
        return self

    def _page(self) -> None:
        """A page of each engine; a killed engine has none."""
        told: list[tuple[float, ...] | None] = []
        for one in self.engines:
            if one in self._gone:
                told.append(None)
                continue
            one.advance(self.now)
            waits = sum(request.state != "dead" for request in one.waiting)
            told.append(
                (one.running, waits, min(1.0, one.held / one.capacity), one.tokens, one.preemptions, one.finished)
            )
        waiting = sum(one.need for one in self.queue)
        self.pages.append(Page(self.now, tuple(told) if not self._dead else (), dict(self.census), waiting))
        self.at(self.now + self.c.page, self._page)

    def _new_engine(self) -> Engine:
        return Engine(self.c.slots, self.c.token_s, self.c.load_s, self.c.kv_tokens, self.c.bend, at=self.now)

    def _change(self, name: str, value: float) -> None:
        self.c = self.c.changed(**{name: value})
        while len(self.engines) - len(self._gone) < self.c.engines:
            self.engines.append(self._new_engine())
        for one in reversed(self.engines):
            if len(self.engines) - len(self._gone) > self.c.engines and one not in self._gone and name == "engines":
                self._lose(one)
        for one in self.engines:
            one.advance(self.now)
            one.slots, one.token_s, one.load_s = self.c.slots, self.c.token_s, self.c.load_s
            one.capacity = self.c.kv_tokens
            one.squeeze()
            one.admit()
            self._plan(one)
        if not self.c.sync:
            self._pump()

    def _burst(self, on: bool) -> None:
        """Engines pause for a burst and then continue."""
        self._pause(on)
        self.at(self.now + (self.c.burst if on else self.c.burst_every), self._burst, not on)

    def _fault(self, kind: str) -> None:
        if kind == "one_dead":
            self._lose(self.engines[0])
            return
        if kind == "stopped":
            self._stop()
            return
        self._dead, self._hung = kind == "killed", kind == "hung"
        for one in self.engines:
            one.advance(self.now)
            one.frozen = kind in ("killed", "frozen")
            self._plan(one)

    def _lose(self, engine: Engine) -> None:
        """An engine dies; its requests begin again on the others."""
        engine.advance(self.now)
        engine.frozen = True
        self._plan(engine)
        self._gone.append(engine)
        owners = [one.owner for one in (*engine.running_requests(), *engine.waiting) if one.state != "dead"]
        for owner in owners:
            self._submit(owner)  # type: ignore[arg-type]

    def _stop(self) -> None:
        """The trainer's process stops, with its dispatch and scoring; engines finish their requests and then idle."""
        self._stopped_until = self.now + self.c.resumes
        goes_on = (self._engine, self._page, self._burst)
        # In place: `run` holds the list.
        self._heap[:] = [
            (when if what in goes_on else max(when, self.now) + self.c.resumes, order, what, args)
            for when, order, what, args in self._heap
        ]
        heapify(self._heap)

    # ---- engines

    def _plan(self, engine: Engine) -> None:
        engine.stamp += 1
        when = engine.next()
        if when < math.inf:
            self.at(when, self._engine, engine, engine.stamp)

    def _engine(self, engine: Engine, stamp: int) -> None:
        if stamp != engine.stamp:
            return
        engine.advance(self.now)
        ended = engine.done()
        engine.squeeze()
        engine.admit()
        self._plan(engine)
        for request in ended:
            if self.now < self._stopped_until:
                self.at(self._stopped_until, self._generated, request.owner)
            else:
                self._generated(request.owner)  # type: ignore[arg-type]

    def _submit(self, rollout: Rollout) -> None:
        self._enter(rollout, "generating")
        engine = min((one for one in self.engines if one not in self._gone), key=lambda one: one.load)
        turns = max(1, self.c.turns)
        before = self.c.prompt + rollout.tokens * rollout.turns / turns
        rollout.request = Request(rollout, max(1.0, rollout.tokens / turns), before)
        rollout.engine = engine
        engine.advance(self.now)
        engine.submit(rollout.request)
        self._plan(engine)

    def _pause(self, on: bool) -> None:
        for one in self.engines:
            one.advance(self.now)
            one.paused = max(0, one.paused + (1 if on else -1))
            self._plan(one)

    # ---- rollouts

    def _spread(self, mean: float, sigma: float) -> float:
        return mean * math.exp(self._rng.gauss(0.0, sigma) - sigma * sigma / 2) if mean > 0 else 0.0

    def _enter(self, rollout: Rollout, state: str) -> None:
        """Moves a rollout into a state; "" is none."""
        if rollout.state:
            self.census[rollout.state] -= 1
            took = self.now - rollout.since
            rollout.spent[rollout.state] = rollout.spent.get(rollout.state, 0.0) + took
        rollout.state, rollout.since = state, self.now
        if state:
            self.census[state] += 1

    def _start(self, group: Group) -> None:
        tokens = self._spread(self.c.tokens, self.c.sigma)
        rollout = Rollout(group, tokens, begun=self.now)
        boot = self._spread(self.c.boot, 0.3)
        group.members.append(rollout)
        group.begun += 1
        self.in_flight += 1
        if boot:
            self._enter(rollout, "booting")
            self.at(self.now + boot, self._booted, rollout)
        else:
            self._submit(rollout)

    def _booted(self, rollout: Rollout) -> None:
        if not rollout.over:
            self._submit(rollout)

    def _generated(self, rollout: Rollout) -> None:
        rollout.turns += 1
        if rollout.turns >= self.c.turns:
            self._ended(rollout)
        else:
            self._enter(rollout, "in_tool")
            self.at(self.now + self._spread(self.c.tool, 0.5), self._booted, rollout)

    def _ended(self, rollout: Rollout) -> None:
        self._enter(rollout, "scoring")
        group = rollout.group
        group.generated += 1
        if not self.c.scorers:
            self.at(self.now + self._spread(self.c.score, 0.2), self._scored, rollout)
        elif group.generated == group.need:
            self._scorer.append(group)
            self._score()

    def _score(self) -> None:
        if not self._scoring and self._scorer:
            self._scoring = True
            took = self._spread(self.c.score, 0.2)
            self._score_seconds.append(took)
            self.at(self.now + took, self._group_scored, self._scorer.popleft())

    def _group_scored(self, group: Group) -> None:
        self._scoring = False
        for one in list(group.members):
            self._scored(one)
        self._score()

    def _scored(self, rollout: Rollout) -> None:
        group = rollout.group
        if rollout.over:
            return
        rollout.over = True
        self._enter(rollout, "waiting_group")
        self._finished.append((rollout.spent, self.now - rollout.begun))
        self.in_flight -= 1
        group.scored += 1
        if group.scored == group.need:
            self._complete(group)
        if not self.c.sync:
            self._pump()

    def _complete(self, group: Group) -> None:
        group.over = True
        if self._group is group:
            self._group = None
        for one in group.members:
            if not one.over:
                self._abort(one)
            elif one.state:
                self._enter(one, "")
        dull = group.dull = self._rng.random() < self.c.zero
        self._dull += dull
        self._groups += 1
        if dull and self.c.filtered and not self.c.sync:
            self._accepted -= group.need
            return
        # The expected number of useful samples, because the sampling noise of forty groups would blur the measured
        # truth.
        self.useful[id(group)] = 1.0 if self.c.filtered and not self.c.sync else 1.0 - self.c.zero
        self.queue.append(group)
        self._taken() if not self.c.sync else self._sync_done()

    def _abort(self, rollout: Rollout) -> None:
        rollout.over = True
        self._enter(rollout, "")
        self.in_flight -= 1
        if (
            rollout.request is not None
            and rollout.engine is not None
            and rollout.request.state in ("waiting", "running")
        ):
            rollout.engine.advance(self.now)
            rollout.engine.abort(rollout.request)
            self._plan(rollout.engine)

    # ---- dispatch

    @property
    def _waiting(self) -> int:
        return len(self.queue) * self.c.group

    def _closed(self) -> bool:
        """Whether production is held."""
        c = self.c
        if c.policy == "gate":
            return self._accepted + c.group > (self.version + 1 + c.bound) * c.batch
        return c.policy in ("queue", "drop") and self._waiting >= max(1.0, c.bound) * c.batch

    def _pump(self) -> None:
        """Begins rollouts while the cap allows."""
        while self.in_flight < self.c.cap:
            if self._group is None and self._closed():
                self._hold(True)
                return
            self._hold(False)
            if self.now < self._dispatch_at - 1e-9:
                if not self._pumping:
                    self._pumping = True
                    self.at(self._dispatch_at, self._pump_later)
                return
            self._begin()
        self._hold(False)

    def _begin(self) -> None:
        if self._group is None:
            self._group = Group(self.version, self.c.group, number=next(self._numbers))
            self._accepted += self.c.group
        group = self._group
        if group.begun + 1 >= self.c.group + self.c.oversample:
            self._group = None
        self._dispatch_at = max(self._dispatch_at, self.now - self.c.dispatch_s) + self.c.dispatch_s
        self._start(group)

    def _pump_later(self) -> None:
        self._pumping = False
        self._pump()

    def _hold(self, on: bool) -> None:
        if self._held_since is not None:
            self._held += self.now - self._held_since
        self._held_since = self.now if on else None
        self.held_once |= on

    # ---- the trainer

    def _new_step(self, now: float) -> None:
        self._step_start, self._ready = now, True
        self._held, self._dropped, self._dull, self._groups = 0.0, 0, 0, 0
        self._finished: list[tuple[dict[str, float], float]] = []
        self._score_seconds: list[float] = []

    def _taken(self) -> None:
        """Consumes a batch if the trainer is ready and a batch is available."""
        if not self._ready:
            return
        while self.c.policy == "drop" and self.queue and self.version - self.queue[0].version > self.c.bound + 1:
            self.queue.popleft()
            self._dropped += self.c.group
        if self._waiting < self.c.batch:
            return
        batch = [self.queue.popleft() for _ in range(self.c.batch // self.c.group)]
        useful = sum(self.useful.pop(id(one)) * one.need for one in batch)
        self._ready = False
        self._staleness = sum(self.version - one.version for one in batch) / len(batch)
        self._train(self.now - self._step_start, useful, tuple((one.number, one.dull, one.version) for one in batch))
        self._pump()

    def _train(self, wait: float, useful: float, groups: tuple[tuple[int, bool, int], ...] = ()) -> None:
        if self._hung:
            return
        c, number = self.c, len(self.rows) + 1
        compute, publish, other = (self._jittered(one) for one in (c.compute, c.publish, c.other))
        values = {
            "trainer_compute_seconds": compute,
            "trainer_weight_sync_seconds": publish,
            "trainer_other_seconds": other,
        }
        if c.checkpoint and number % c.every == 0:
            values["trainer_checkpoint_seconds"] = self._jittered(c.checkpoint)
        if c.evaluate:
            values["trainer_eval_seconds"] = self._jittered(c.evaluate)
            values["trainer_other_seconds"] += values["trainer_eval_seconds"]
        busy = sum(values.values()) - values.get("trainer_eval_seconds", 0.0)
        values["generation_seconds" if c.sync else "trainer_wait_seconds"] = wait
        if c.pause:
            self.at(self.now + busy - publish, self._pause, True)
            self.at(self.now + busy, self._pause, False)
        self.at(self.now + busy, self._stepped, values, useful, groups)

    def _jittered(self, mean: float) -> float:
        return mean * math.exp(self._steps_rng.gauss(0.0, self.c.jitter))

    def _stepped(
        self, values: dict[str, float], useful: float, groups: tuple[tuple[int, bool, int], ...] = ()
    ) -> None:  # fmt: skip
        self._hold(self._held_since is not None)
        values |= {"trainer_step_seconds": self.now - self._step_start, "trainer_samples": float(self.c.batch)}
        self.version += 1
        self.rows.append(Row(self.now, len(self.rows) + 1, values | self._logged(), useful, groups))
        self._new_step(self.now)
        if self.c.sync:
            self._sync_step()
        else:
            self._pump()
            self._taken()

    def _logged(self) -> dict[str, float]:
        """Values that the orchestrator adds to a step's row."""
        c, told = self.c, {"policy_version": float(self.version)}
        if c.trainer_gpus and not c.sync:
            told["staleness_versions_mean"] = self._staleness
        if c.policy == "gate":
            told["dispatch_gate_wait_seconds"] = self._held
        elif c.policy in ("queue", "drop") and self._held:
            told["backpressure_seconds"] = self._held
        if self._dropped:
            told["stale_dropped_rollouts"] = float(self._dropped)
        if c.row_only:
            told |= {"queue_samples": float(self._waiting), "in_flight_rollouts": float(self.in_flight)}
        if self._groups and not c.traced:
            share = self._dull / self._groups
            told |= {"groups_all_solved_ratio": share * c.easy, "groups_none_solved_ratio": share * (1 - c.easy)}
        if self._score_seconds:
            told["reward_seconds"] = sum(self._score_seconds) / len(self._score_seconds)
        return told | self._phases()

    def _phases(self) -> dict[str, float]:
        ended = self._finished
        if not ended or not self.c.phases:
            return {}
        names = dict(zip(PROGRESS, ("setup", "model", "harness", "scoring"), strict=True))
        means = {
            f"rollout_{to}_seconds_mean": sum(spent.get(name, 0.0) for spent, _ in ended) / len(ended)
            for name, to in names.items()
        }
        return means | {"rollout_seconds_mean": sum(whole for _, whole in ended) / len(ended)}

    # ---- synchronous steps

    def _sync_step(self) -> None:
        for _ in range(self.c.batch // self.c.group):
            group = Group(self.version, self.c.group)
            for _ in range(self.c.group + self.c.oversample):
                self._start(group)

    def _sync_done(self) -> None:
        if self._waiting < self.c.batch:
            return
        useful = sum(self.useful.pop(id(one)) * one.need for one in self.queue)
        self.queue.clear()
        self._train(self.now - self._step_start, useful)
