"""Inputs and results of preflight checks. Frozen, pure; times are epoch seconds, durations seconds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Literal

from collectors.model import Reading, Sandbox, ScrapeError, Target

Status = Literal["ok", "warn", "fail", "unknown", "not_applicable"]
SEVERITY: tuple[Status, ...] = ("not_applicable", "ok", "unknown", "warn", "fail")

PENDING = ("queued", "building_image", "starting")
# `stopping` is left out: it is going away by itself.
HELD = (*PENDING, "running", "paused", "unknown")


# Quotas of a provider's account, and what one sandbox takes of some of them.
RESOURCES = ("concurrent", "starting", "creates_per_second", "creates_per_hour", "cpu", "memory_gb", "disk_gb", "gpu")
SIZES = ("cpu", "memory_gb", "disk_gb", "gpu")
# A crash leaves a few sandboxes; more are a leak that grows.
MAX_DANGLING = 10
# Less pays for less than an hour of a hundred sandboxes of the cheapest kind.
MIN_CREDIT_USD = 10.0


@dataclass(frozen=True, slots=True)
class PreflightPlan:
    """What the run will need. None: not stated; a check that needs the value answers "unknown".

    Attributes:
        concurrency: sandboxes alive at once at the peak.
        create_rate: sandboxes created per second at the peak.
        rollout_deadline: longest duration of a rollout in seconds.
        run_length: planned duration of the run in seconds.
        images: images that sandboxes start from.
        limits: quotas (of `RESOURCES`); if the provider reports one too, the lower one holds.
        price: USD per hour of one sandbox.
        sandbox_ttl: lifetime of a sandbox in seconds; inf for no limit.
        spinup: typical seconds from request to ready, used until some were observed.
        size: resources (of `SIZES`) of one sandbox.
        known_runs: names (shell patterns) of runs elsewhere that use the same accounts.
        max_dangling: more dangling sandboxes than this fail the check.
        min_credit: USD; a lower credit fails the check if no price is available.
        engines_later: the run starts its own engines, so an engine without an answer is no failure.
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

    def over(self, other: "PreflightPlan") -> "PreflightPlan":
        """This plan with the other's values where this one has none: a command line over a file.

        Thresholds (`max_dangling`, `min_credit`, `engines_later`) are the other's.
        """
        names = ("concurrency", "create_rate", "rollout_deadline", "run_length", "price", "sandbox_ttl", "spinup")
        numbers = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        collections = {
            name: getattr(self, name) for name in ("images", "limits", "size", "known_runs") if getattr(self, name)
        }
        return replace(other, **numbers, **collections)


@dataclass(frozen=True, slots=True)
class PathSeen:
    """The state of a target's path. ``newest``: the latest modification below it, if any."""

    exists: bool
    readable: bool
    newest: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """One target, read once: exactly one of `reading` and `error`.

    Attributes:
        skew: seconds by which the other side's clock is at least ahead of ours (negative: behind); None: not reported.
        newest: time of the newest thing it reported, by its own clock.
        version: as the engine reports it; "" if it reports none.
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
        values = [
            sample.value
            for sample in (self.reading.samples if self.reading else ())
            if sample.metric == metric
            and (not resource or ("resource", resource) in sample.labels)
            # Not a number compares as neither more nor less: it would pass every test.
            and isfinite(sample.value)
        ]
        return sum(values) if values else None

    def held_sandboxes(self) -> list[Sandbox]:
        """Sandboxes of this account that take quota now."""
        return [sandbox for sandbox in self.reading.sandboxes if sandbox.state in HELD] if self.reading else []

    def complete(self) -> bool:
        """Whether the reading contains every live sandbox."""
        return bool(self.reading and self.reading.listed)

    def unseen(self) -> str:
        """Describes which sandboxes of this account could not be read; "" if none are missing."""
        if self.reading is None:
            return ""
        dropped = f"{self.reading.dropped} rows dropped: {self.reading.why_dropped}" if self.reading.dropped else ""
        text = "; ".join(reason for reason in (dropped, self.reading.partial) if reason)
        return f"{self.name}: {text}" if text else ""


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
    plan: PreflightPlan
    seen: tuple[ReadTarget, ...]
    facts: Mapping[str, str | float]
    now: float
    keys: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    running: bool = False

    def accounts(self) -> list[ReadTarget]:
        """Returns the sandbox targets that are accounts; pages of histograms report no quota."""
        return [target for target in self.seen if target.target.actor == "sandbox" and not _only_histograms(target)]

    def sandboxes(self) -> Iterator[Sandbox]:
        """Returns every record that was read, live or not."""
        for target in self.seen:
            yield from target.reading.sandboxes if target.reading else ()

    def unseen(self) -> tuple[str, ...]:
        """`ReadTarget.unseen` of every account where there is something to say."""
        return tuple(text for account in self.accounts() if (text := account.unseen()))

    def needs_none(self) -> bool:
        return self.facts.get("has_sandbox") == 0


def _only_histograms(seen: ReadTarget) -> bool:
    reading = seen.reading
    if reading is None or not reading.histograms:
        return False
    reports = any(sample.metric.startswith(("sandbox_quota", "sandbox_credit")) for sample in reading.samples)
    return not (reports or reading.sandboxes or reading.listed)


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
