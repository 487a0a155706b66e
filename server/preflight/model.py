"""What a pre-flight check is told and what it answers. Frozen, pure; times are epoch seconds, durations seconds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Literal

from collectors.model import Reading, Sandbox, ScrapeError, Target

Status = Literal["ok", "warn", "fail", "unknown", "not_applicable"]
SEVERITY: tuple[Status, ...] = ("not_applicable", "ok", "unknown", "warn", "fail")

RESOURCES = ("concurrent", "starting", "creates_per_second", "creates_per_hour", "cpu", "memory_gb", "disk_gb", "gpu")
SIZES = ("cpu", "memory_gb", "disk_gb", "gpu")

PENDING = ("queued", "building_image", "starting")
# `stopping` is left out: it is going away by itself.
HELD = (*PENDING, "running", "paused", "unknown")


# A handful of orphans is what a crash leaves; more is a leak, and it grows.
MAX_DANGLING = 10
# Less does not last an hour of a hundred sandboxes at what the cheapest of them costs.
MIN_CREDIT_USD = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run is going to ask for. None: not said; a check that needs it answers "unknown".

    Attributes:
        concurrency: sandboxes alive at once at the peak.
        create_rate: sandboxes created per second at the peak.
        rollout_deadline: the longest a rollout may take.
        run_length: how long the run is to go on.
        images: what the sandboxes start from.
        limits: quotas (of `RESOURCES`) that a provider does not tell; where it does, the lower one holds.
        price: USD per hour of one sandbox.
        sandbox_ttl: the time a sandbox is created to live for; inf for no limit.
        spinup: a typical time from requested to ready, where nothing is known yet.
        size: what one sandbox takes of `SIZES`.
        known_runs: names (shell patterns) of runs alive elsewhere in the same accounts.
        max_dangling: more dangling sandboxes than this fail.
        min_credit: USD below which a credit fails where no price is known.
        engines_later: the run starts its own engines: one that does not answer yet is no failure.
    """

    concurrency: int | None = None
    create_rate: float | None = None
    rollout_deadline: float | None = None
    run_length: float | None = None
    images: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    price: float | None = None
    sandbox_ttl: float | None = None
    spinup: float | None = None
    size: Mapping[str, float] = field(default_factory=dict)
    known_runs: tuple[str, ...] = ()
    max_dangling: int = MAX_DANGLING
    min_credit: float = MIN_CREDIT_USD
    engines_later: bool = False

    def over(self, other: "Plan") -> "Plan":
        """This plan where it says something, else the other's: a command line over a file.

        Thresholds (`max_dangling`, `min_credit`, `engines_later`) are the other's.
        """
        names = ("concurrency", "create_rate", "rollout_deadline", "run_length", "price", "sandbox_ttl", "spinup")
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        told = {name: getattr(self, name) for name in ("images", "limits", "size", "known_runs") if getattr(self, name)}
        return replace(other, **said, **told)


@dataclass(frozen=True, slots=True)
class PathSeen:
    """What the file system says of a target's path. ``newest``: the latest modification below it, if any."""

    exists: bool
    readable: bool
    newest: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One target, read once: exactly one of `reading` and `error`.

    Attributes:
        skew: seconds by which the other side's clock is ahead of ours at least (negative: behind); None: not told.
        newest: time of the newest thing it reported, by its own clock.
        version: of the engine, as it says; "" when it does not.
        path: what its path looks like; None for what is read over HTTP.
    """

    target: Target
    reading: Reading | None = None
    error: ScrapeError | None = None
    seconds: float = 0.0
    skew: float | None = None
    newest: float | None = None
    version: str = ""
    path: PathSeen | None = None

    @property
    def name(self) -> str:
        return self.target.name

    def gauge(self, metric: str, resource: str = "") -> float | None:
        """The sum of a metric's samples (of one quota's resource); None when there is none."""
        found = [
            sample.value
            for sample in (self.reading.samples if self.reading else ())
            if sample.metric == metric
            and (not resource or ("resource", resource) in sample.labels)
            # Not a number compares as neither more nor less: it would pass every test.
            and isfinite(sample.value)
        ]
        return sum(found) if found else None

    def held(self) -> list[Sandbox]:
        """Sandboxes of this account that take quota now."""
        return [one for one in self.reading.sandboxes if one.state in HELD] if self.reading else []

    def complete(self) -> bool:
        """Does the reading hold every live sandbox?"""
        return bool(self.reading and self.reading.listed)

    def unseen(self) -> str:
        """What of this account's sandboxes could not be read, in a line with its name; "" when nothing is known of."""
        if self.reading is None:
            return ""
        dropped = f"{self.reading.dropped} rows dropped: {self.reading.why_dropped}" if self.reading.dropped else ""
        words = "; ".join(one for one in (dropped, self.reading.partial) if one)
        return f"{self.name}: {words}" if words else ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything the checks of one run look at.

    Attributes:
        facts: of the configuration over those of the readings.
        keys: names by which providers know this run.
        alive: names of other runs that live now, besides the plan's `known_runs`.
        running: there is evidence that this run itself goes on now: its sandboxes are no leftovers.
    """

    run: str
    plan: Plan
    seen: tuple[Seen, ...]
    facts: Mapping[str, str | float]
    now: float
    keys: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    running: bool = False

    def accounts(self) -> list[Seen]:
        """Sandbox targets that are an account: pages of histograms beside one tell no quota, and need not."""
        return [one for one in self.seen if one.target.actor == "sandbox" and not _only_histograms(one)]

    def sandboxes(self) -> Iterator[Sandbox]:
        """Every record met, live or not."""
        for one in self.seen:
            yield from one.reading.sandboxes if one.reading else ()

    def unseen(self) -> tuple[str, ...]:
        """`Seen.unseen` of every account where there is something to say."""
        return tuple(words for one in self.accounts() if (words := one.unseen()))

    def needs_none(self) -> bool:
        return self.facts.get("has_sandbox") == 0


def _only_histograms(seen: Seen) -> bool:
    reading = seen.reading
    if reading is None or not reading.histograms:
        return False
    told = any(sample.metric.startswith(("sandbox_quota", "sandbox_credit")) for sample in reading.samples)
    return not (told or reading.sandboxes or reading.listed)


@dataclass(frozen=True, slots=True)
class Check:
    """One answer.

    Attributes:
        value: the number it turns on, in `unit`; None when there is none.
        limit: what `value` is held against, in the same unit.
        summary: the arithmetic in one sentence.
        fix: what to do; "" when nothing is to do.
        details: one line for each thing behind it.
        ids: sandboxes it names, at most `IDS_SHOWN` of them; `commands` remove them, one each.
    """

    name: str
    status: Status
    summary: str
    fix: str = ""
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    details: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


IDS_SHOWN = 20


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe; "unknown" of nothing, for nothing is no evidence."""
    return max(statuses, key=SEVERITY.index, default="unknown")


def number(value: float) -> str:
    """A number for a sentence: 1000, 0.25, 3.14, never 1e+03."""
    if abs(value) == inf:
        return "no limit"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def span(seconds: float) -> str:
    """A duration for a sentence: 45 s, 30 min, 24 h."""
    if seconds == inf:
        return "no limit"
    if seconds < 180:
        return f"{number(seconds)} s"
    return f"{number(seconds / 60)} min" if seconds < 7200 else f"{number(seconds / 3600)} h"
