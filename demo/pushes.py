"""Posts of an instrumented orchestrator about each rollout: data that no file of prime-rl contains.

NDJSON for `POST /api/v1/runs/RUN/rollouts`: that a rollout is in flight, tokens per version, the acting version of each
turn and whether it changed the sandbox, the task's own result, stale drops.

For the past (the demo's first hour) only ended rollouts are posted; rollouts in flight are posted once it is live.
"""

import json
import logging
import urllib.request
from collections import deque
from collections.abc import Iterable
from itertools import islice
from urllib.parse import quote

from demo.orchestrator import EXITS, trace_id
from demo.prime import group_id
from demo.records import Batch, Observer
from demo.rollouts import Group, Rollout
from demo.scenarios import Scenario

# ---- telling
# Base class of collectors of posts about rollouts: NDJSON for `POST /api/v1/runs/RUN/rollouts`.

# Lines kept while they cannot be posted; older ones are dropped.
KEPT_LINES = 50_000


class Telling:
    """`_say` adds a line, `take` returns them. `start`: the run's, epoch seconds; `since` too.

    Subclasses leave out what ends before `since`; `is_live`: starts are posted too.
    """

    def __init__(self, scenario: Scenario, seed: int, start: float, since: float = 0.0) -> None:
        self._scenario, self._seed, self._start, self._since = scenario, seed, start, since - start
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.is_live = False

    def take(self) -> list[str]:
        """Returns the lines since the last call, oldest first."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def _say(self, rollout: Rollout, **values: object) -> None:
        """Adds a record without its None values, which are unknown."""
        present = {key: value for key, value in values.items() if value is not None}
        self._lines.append(json.dumps({"rollout_id": self._name(rollout), **present}, separators=(",", ":")))

    def _name(self, rollout: Rollout) -> str:
        return trace_id(self._seed, rollout)

    def _at(self, seconds: float) -> float:
        return round(self._start + seconds, 3)


log = logging.getLogger("demo")

_LINES = 2_000
_TIMEOUT_SECONDS = 30.0
Line = dict[str, object]


class Instrument(Telling, Observer):
    """Collects lines as events happen. Rollouts scored before `since` are left out, as in `Traces`."""

    def __init__(self, scenario: Scenario, seed: int, start: float, since: float = 0.0, uses: bool = False) -> None:
        """`uses`: also posts what was trained on, if no file contains it."""
        super().__init__(scenario, seed, start, since)
        self._uses = uses

    def go_live(self, under_way: Iterable[Rollout]) -> None:
        """From now on also posts starts; the given rollouts have begun already."""
        self.is_live = True
        for rollout in under_way:
            if not rollout.scored:
                self._begun(rollout)

    def dispatched(self, now: float, rollout: Rollout) -> None:
        if self.is_live:
            self._begun(rollout)

    def ready(self, now: float, rollout: Rollout) -> None:
        if self.is_live:
            self._begun(rollout)

    def _begun(self, rollout: Rollout) -> None:
        """Posts a dispatched rollout, or one whose sandbox is ready. Without sandboxes it starts at dispatch."""
        if self._scenario.sandboxes is None:
            at = self._at(rollout.dispatched)
            self._say(rollout, dispatched_at=at, started_at=at, **self._about(rollout))
            return
        booted = rollout.ready > rollout.dispatched
        boot: Line = {"kind": "boot", "start": self._at(rollout.dispatched)}
        line: Line = {"spans": [boot | {"end": self._at(rollout.ready)} if booted else boot]}
        if booted:
            line["started_at"] = self._at(rollout.ready)
        self._say(rollout, dispatched_at=self._at(rollout.dispatched), **line, **self._about(rollout))

    def scored(self, now: float, rollout: Rollout) -> None:
        if now < self._since:
            return
        self._say(
            rollout,
            dispatched_at=self._at(rollout.dispatched),
            first_token_at=self._at(rollout.first_token),
            finished_at=self._at(rollout.finished),
            token_versions=rollout.made,
            **self._done(rollout),
            **self._outcome(rollout, now),
            **self._about(rollout),
        )

    def _done(self, rollout: Rollout) -> Line:
        """Returns its turns; of an agent only their number, because its engine had one request."""
        if rollout.turns == len(rollout.calls):
            return {"turns": self._turns(rollout)}
        line: Line = {"turns": rollout.turns, "tool_calls": rollout.turns - 1}
        return line | {"prompt_tokens": rollout.input_tokens, "response_tokens": rollout.response_tokens}

    def filtered(self, now: float, group: Group) -> None:
        if now >= self._since:
            for rollout in group.rollouts:
                self._say(rollout, exit="zero_advantage", exited_at=self._at(now))

    def _outcome(self, rollout: Rollout, now: float) -> Line:
        if rollout.error:
            return {"exit": EXITS[rollout.error], "exited_at": self._at(now)}
        line: Line = {"scored_at": self._at(now), "reward": rollout.reward, "max_reward": 1.0}
        return line | {"solved": rollout.reward == 1.0}

    def evaluated(self, now: float, rollout: Rollout) -> None:
        self.scored(now, rollout)

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        for group in batch.dropped:
            for rollout in group.rollouts:
                if rollout.scored >= self._since and not rollout.error:
                    self._say(rollout, exit="stale", exited_at=self._at(now))
        if self._uses and now >= self._since:
            for rollout in batch.rollouts():
                self._say(rollout, exit="trained", consumed_at=self._at(now), version_consumed=batch.step - 1)

    def _about(self, rollout: Rollout) -> Line:
        group = rollout.group
        return {
            "group_id": group_id(self._seed, group),
            "group_size": group.size,
            "purpose": "eval" if group.evaluates else "train",
            "environment": group.evaluates or self._scenario.environment,
            "version_dispatched": group.version,
            "engine": "engine-eval" if group.evaluates else f"engine-{group.engine}",
        }

    def _turns(self, rollout: Rollout) -> list[Line]:
        box = {"sandbox_id": rollout.sandbox.id} if rollout.sandbox else {}
        last = len(rollout.calls) - 1
        return [
            {
                "version": call.version,
                "tool_calls": int(index < last),
                "mutated": call.mutated,
                **({"reset": True} if call.reset else {}),
                **box,
            }
            for index, call in enumerate(rollout.calls)
        ]


class Poster:
    """Posts lines to a server that may be full or not started; lines it refused are posted the next time."""

    def __init__(self, url: str, run: str, token: str = "") -> None:
        self._url = f"{url}/api/v1/runs/{quote(run)}/rollouts"
        self._headers = {"content-type": "application/x-ndjson"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._left: deque[str] = deque(maxlen=KEPT_LINES)

    def post(self, lines: list[str]) -> None:
        self._left.extend(lines)
        while self._left and self._post(list(islice(self._left, _LINES))):
            for _ in range(min(_LINES, len(self._left))):
                self._left.popleft()

    def _post(self, lines: list[str]) -> bool:
        request = urllib.request.Request(self._url, "\n".join(lines).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                answer.read()
        except OSError as error:  # HTTPError is one
            log.debug("%d lines wait: %s", len(self._left), error)
            return False
        return True
