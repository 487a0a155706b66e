"""The sandboxes of one run over event time: live ones and events of five minutes. Memory is bounded by their number."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from collectors.model import Sandbox

# As of `model`, which imports this module: below it clocks of one cluster are normal.
SKEW_SECONDS = 30.0
WINDOW_SECONDS = 300.0
"""As of every engine and sandbox signal (`TICK_WINDOW_SECONDS`)."""

NEVER = "never"
PENDING = ("queued", "building_image", "starting")
OVER = ("terminated", "failed")
REFUSALS = ("rate_limit", "quota", "credit", "capacity")
"""Causes of failure for which a provider creates no sandbox."""
Key = tuple[str, str]


@dataclass(slots=True)
class SandboxBook:
    """The sandboxes of one run over event time.

    Attributes:
        own: live sandboxes of the run; `foreign`: live ones of others in the same accounts that dangle.
        ready: (when, spin-up seconds, image cached?) and created: when, of the last five minutes.
        fates: sandboxes that became ready or failed within five minutes: (when, cause of failure; "" if ready). A
            sandbox that became ready and failed later has failed.
        met: when a live one of the run was first seen, for those without a reported time.
        heard: target -> (event time of its last successful answer, seconds it stays valid); "" are pushes.
    """

    own: dict[Key, Sandbox] = field(default_factory=dict)
    foreign: dict[Key, Sandbox] = field(default_factory=dict)
    ready: deque[tuple[float, float, bool | None]] = field(default_factory=deque)
    created: deque[float] = field(default_factory=deque)
    fates: OrderedDict[Key, tuple[float, str]] = field(default_factory=OrderedDict)
    met: dict[Key, float] = field(default_factory=dict)
    heard: dict[str, tuple[float, float]] = field(default_factory=dict)

    def put(
        self, ts: float, record: Sandbox, *, own: bool, dangling: bool, created: bool, became_ready: bool,
        met: float | None = None,
    ) -> None:  # fmt: skip
        """Adds one change, in the order of time. ``met``: when it was first seen (default: now)."""
        key = (record.provider, record.id)
        self.own.pop(key, None)
        self.met.pop(key, None)
        self.foreign.pop(key, None)
        if record.state not in OVER and (own or dangling):
            (self.own if own else self.foreign)[key] = record
            self.met[key] = ts if met is None else met
        if not own:
            return
        if created:
            self._append(self.created, record.requested_at if record.requested_at is not None else ts)
        seconds = spinup(record)
        if became_ready and seconds is not None:
            at = record.ready_at if record.ready_at is not None else ts
            if record.latency_source == "trace" and record.ended_at is not None:
                at = record.ended_at  # reported at its end: rollouts longer than the window must not be left out
            self.ready.append((at, seconds, record.image_cached))
        self._note_fate(key, record, ts)
        self._trim(ts)

    def _note_fate(self, key: Key, record: Sandbox, ts: float) -> None:
        failed = record.state == "failed"
        at = (record.ended_at if record.ended_at is not None else ts) if failed else record.ready_at
        if at is not None and at > ts - WINDOW_SECONDS:
            self.fates[key] = (at, (record.cause or "unknown") if failed else "")
            self.fates.move_to_end(key)

    @staticmethod
    def _append(times: deque[float], ts: float) -> None:
        times.append(ts)

    def _trim(self, now: float) -> None:
        # A provider's history comes unordered when it is read for the first time; bounded all the same.
        start = now - WINDOW_SECONDS
        while self.ready and (self.ready[0][0] < start or len(self.ready) > 100_000):
            self.ready.popleft()
        while self.created and (self.created[0] < start or len(self.created) > 100_000):
            self.created.popleft()
        while self.fates and (next(iter(self.fates.values()))[0] < start or len(self.fates) > 100_000):
            self.fates.popitem(last=False)

    def decided(self, now: float) -> tuple[int, int]:
        """(number of failed ones, number of failed or ready ones) within the window; each counts once."""
        causes = self._causes(now)
        return sum(map(bool, causes)), len(causes)

    def refused(self, now: float) -> dict[str, float]:
        """Cause -> share of the sandboxes decided within the window that the provider refused for it."""
        causes = self._causes(now)
        return {cause: causes.count(cause) / len(causes) for cause in REFUSALS} if causes else {}

    def outcomes(self, now: float) -> dict[str, int]:
        """How many became ready, were refused and failed otherwise within the window; each counts once."""
        causes = self._causes(now)
        refused = sum(cause in REFUSALS for cause in causes)
        ready = causes.count("")
        return {"ready": ready, "refused": refused, "failed": len(causes) - ready - refused}

    def _causes(self, now: float) -> list[str]:
        return [cause for ts, cause in self.fates.values() if now - WINDOW_SECONDS < ts <= now]

    def readied(self, now: float) -> Iterator[tuple[float, bool | None]]:
        """(seconds, image cached?) of those that became ready within the window."""
        return ((seconds, cached) for ts, seconds, cached in self.ready if now - WINDOW_SECONDS < ts <= now)

    def by_state(self) -> Counter[str]:
        return Counter(record.state for record in self.own.values())

    def waiting(self, now: float) -> list[float]:
        """Seconds since the request of those that are not usable yet.

        Where that time is not reported, or its clock runs ahead: seconds since they were first seen, a lower bound."""
        pending = (key for key, record in self.own.items() if record.state in PENDING)
        return [max(0.0, now - self._asked(key, now)) for key in pending]

    def _asked(self, key: Key, now: float) -> float:
        asked = self.own[key].requested_at
        return asked if asked is not None and asked <= now + SKEW_SECONDS else self.met[key]

    def silent(self, now: float) -> str:
        """Why the last answers are too old at ``now``, or "": one source with a recent answer is enough.

        Answers later than ``now`` do not count: history is judged after the first poll.
        """
        answers = [(ts, keep) for ts, keep in self.heard.values() if ts <= now + SKEW_SECONDS]
        if any(now - ts <= keep for ts, keep in answers):
            return ""
        if not answers:
            return NEVER
        age = now - max(ts for ts, _ in answers)
        return f"no provider has answered for {age:.0f} s"


def spinup(record: Sandbox) -> float | None:
    """Seconds from requested to ready; None when either is not known, or a clock is wrong."""
    if record.ready_at is None or record.requested_at is None:
        return None
    seconds = record.ready_at - record.requested_at
    return seconds if seconds >= 0 else None
