"""Checks that the planned load fits the free quota of the accounts: at once, while starting, and per second.

A quota is known only if every account of the run reports it or the configuration caps them all; what is in use is
known only from a complete listing. Whatever is missing makes an answer "unknown", or worse where even the known part
does not fit, but never "ok".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectors.model import Histogram, Sandbox
from server.config.preflight import SIZES
from server.preflight.model import PENDING, Check, Inputs, ReadTarget, Status, number, span, worst

# Retries and stragglers need some room in addition to the plan.
QUOTA_SPARE = 0.9
# Seconds. Long enough to include a burst, short enough to be the current rate.
RATE_SECONDS = 60.0
# Starts come in bursts (a batch ends, the next begins), so the mean of a queue needs more.
STARTING_SPARE = 0.8
P95 = 0.95
CONFIGURE = "or set it in limits under [run.NAME.preflight]"


@dataclass(frozen=True, slots=True)
class Room:
    """Quota of one resource over the accounts of a run.

    Attributes:
        limit: None if neither an account nor the configuration gives it.
        used: at least this much.
        exact: `used` is all of it.
        known: some account reports what is in use; else `used` is zero without a reading.
    """

    limit: float | None
    used: float
    exact: bool
    known: bool = True

    @property
    def free(self) -> float | None:
        return None if self.limit is None else self.limit - self.used

    def taken(self, what: str) -> str:
        """Returns the text on the number of sandboxes that are ``what`` ("in use")."""
        if not self.known:
            return f"the number {what} is unknown"
        return f"{'' if self.exact else 'at least '}{number(self.used)} {what}"

    def left(self, what: str, word: str) -> str:
        """Returns the subtraction for a reported limit: "3 free: limit 10 - 7 in use"."""
        free, limit = number(self.free or 0.0), number(self.limit or 0.0)
        if not self.known:
            return f"at most {free} {word}: limit {limit}, {self.taken(what)}"
        return f"{free} {word}: limit {limit} - {self.taken(what)}"


def room(inputs: Inputs, resource: str) -> Room:
    """Returns limit and use of a resource, over all accounts of the run."""
    accounts = inputs.accounts()
    granted = [one.gauge("sandbox_quota_limit", resource) for one in accounts]
    limits = [limit for limit in granted if limit is not None]
    whole = sum(limits) if limits and len(limits) == len(granted) else None
    caps = [limit for limit in (whole, inputs.plan.limits.get(resource)) if limit is not None]
    uses = [_used(one, resource, inputs.now) for one in accounts]
    return Room(
        limit=min(caps, default=None),
        used=sum(used or 0.0 for used, _ in uses),
        exact=bool(uses) and all(exact for _, exact in uses),
        known=any(used is not None for used, _ in uses),
    )


def _used(seen: ReadTarget, resource: str, now: float) -> tuple[float | None, bool]:
    """Returns (number in use, whether it is complete)."""
    reported = seen.gauge("sandbox_quota_used", resource)
    if resource == "concurrent":
        counted = float(len(seen.held()))
    elif resource == "starting":
        counted = float(len([one for one in seen.held() if one.state in PENDING]))
    elif resource == "creates_per_second":
        # Before the launch the account's rate comes from other runs. If it is not reported it is counted, never zero.
        rate = reported if reported is not None else seen.gauge("sandbox_creates_per_second")
        return (rate, True) if rate is not None else (_created_lately(seen, now), seen.complete())
    else:
        return reported, reported is not None
    if reported is not None:
        # The provider's number takes precedence over the count: some quotas leave out paused sandboxes or other kinds.
        return reported, True
    return (counted, seen.complete()) if seen.reading is not None else (None, False)


def _created_lately(seen: ReadTarget, now: float) -> float | None:
    """Returns creations per second over the last minute, from live sandboxes; None if the list is incomplete."""
    if not seen.complete():
        return None
    created = [
        one for one in seen.held() if one.requested_at is not None and now - RATE_SECONDS < one.requested_at <= now
    ]
    return len(created) / RATE_SECONDS


def quota(inputs: Inputs) -> Check:
    """Compares limit - used with the planned concurrency, and with the resources of that many sandboxes."""
    seats = room(inputs, "concurrent")
    planned = inputs.plan.concurrency
    refused = [f"{one.name}: {one.error}" for one in inputs.accounts() if one.error and one.error.kind == "quota"]
    resources = [answer for name in SIZES if (answer := _resource(inputs, name)) is not None]
    known = _fits(planned, seats.free, QUOTA_SPARE, seats.exact) if seats.free is not None else "unknown"
    if seats.limit is None and any(answer.status == "ok" and answer.sure for answer in resources):
        known = "ok"  # some providers count cores, not sandboxes
    status = "fail" if refused else worst([known, *(answer.status for answer in resources)])
    return Check(
        "quota", status, _seats_words(seats, planned), _quota_fix(status, seats, planned),
        value=planned, limit=seats.free, unit="sandboxes",
        details=(*refused, *(answer.words for answer in resources), *inputs.unseen()),
    )  # fmt: skip


def _fits(need: float | None, free: float, spare: float, exact: bool) -> Status:
    """Returns whether the need fits. Without a need only a full quota decides; an uncertain use is never "ok"."""
    if need is None:
        return "fail" if free <= 0 else "unknown"
    if need > free:
        return "fail"
    if need > spare * free:
        return "warn"
    return "ok" if exact else "unknown"


def _seats_words(seats: Room, planned: int | None) -> str:
    plan = f"{planned} planned" if planned is not None else "no concurrency planned (--concurrency)"
    if seats.limit is None:
        return f"{plan}, {seats.taken('in use')}; the limit is not reported"
    return f"{plan}, {seats.left('in use', 'free')}"


def _quota_fix(status: Status, seats: Room, planned: int | None) -> str:
    if status == "unknown":
        return "give --concurrency" if planned is None else f"read the limit on the provider's plan page {CONFIGURE}"
    if status == "ok":
        return ""
    most = math.floor(QUOTA_SPARE * max(seats.free, 0.0)) if seats.free is not None else 0
    lower = f"lower the concurrency to {most}, " if most else ""
    return f"{lower}remove dangling sandboxes, or ask the provider for a higher limit"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result for one resource. ``sure``: its size is planned, not estimated from live sandboxes."""

    status: Status
    words: str
    sure: bool


def _resource(inputs: Inputs, name: str) -> _Answer | None:
    """Checks cores, memory, disk and GPUs: None without a limit or without the size of a sandbox."""
    here, planned = room(inputs, name), inputs.plan.concurrency
    if here.limit is None or planned is None:
        return None
    stated = inputs.plan.size.get(name)
    alive = sum(len(one.held()) for one in inputs.accounts())
    size = stated if stated is not None else here.used / alive if alive and here.exact else None
    if not size:
        return None
    status = _fits(planned * size, here.limit - here.used, QUOTA_SPARE, here.exact)
    if stated is None and status == "fail":
        status = "warn"  # the mean of other sandboxes is a guess
    words = f"{name}: {number(planned * size)} needed ({number(size)} each"
    words += "" if stated is not None else ", as the live sandboxes use"
    return _Answer(status, f"{words}), {number(here.limit - here.used)} free of {number(here.limit)}", bool(stated))


# ---- starting


@dataclass(frozen=True, slots=True)
class Spinup:
    """The 95th percentile of known spin-ups. ``exact``: False when it is only a lower bound."""

    seconds: float
    exact: bool
    words: str


def spinup(inputs: Inputs) -> Spinup | None:
    """Returns how long a start takes, from records of the accounts, else from histograms, else from the plan.

    A pending sandbox that is older than most spin-ups counts with its age: it is in no list of finished ones, and
    it is what a wall looks like before anything fails.
    """
    done = sorted(seconds for one in inputs.sandboxes() if (seconds := _took(one)) is not None)
    ages = [
        inputs.now - one.requested_at
        for one in inputs.sandboxes()
        if one.state in PENDING and one.requested_at is not None and one.requested_at <= inputs.now
    ]
    usual = _quantile(done) if done else inputs.plan.spinup
    late = [age for age in ages if age > (usual or 0.0)]
    if done:
        found = _quantile(sorted([*done, *late]))
        more = f" and {len(late)} still pending for longer" if late else ""
        return Spinup(found, not late, f"p95 of {len(done)} spin-ups{more} is {span(found)}")
    if (paged := _of_histograms(inputs)) is not None:
        return paged
    if inputs.plan.spinup is not None:
        found = max([inputs.plan.spinup, *late])
        return Spinup(found, not late, f"spin-up as configured, {span(found)}" if not late else _pending(late))
    return Spinup(max(late), False, _pending(late)) if late else None


def _pending(ages: Sequence[float]) -> str:
    return f"no spin-up finished yet, the oldest of {len(ages)} is pending for {span(max(ages))}"


def _took(one: Sandbox) -> float | None:
    if one.ready_at is None or one.requested_at is None or one.ready_at < one.requested_at:
        return None
    return one.ready_at - one.requested_at


def _quantile(ascending: Sequence[float]) -> float:
    return ascending[math.ceil(P95 * len(ascending)) - 1]


def _of_histograms(inputs: Inputs) -> Spinup | None:
    pages = [one.reading.histograms for one in inputs.seen if one.reading]
    found = [edge for page in pages for one in page if (edge := _edge(one)) is not None]
    if not found:
        return None
    seconds, exact = max(edge for edge, _ in found), all(inside for _, inside in found)
    more = "" if exact else "more than "
    return Spinup(seconds, exact, f"p95 of the spin-up histogram is {more}{span(seconds)}")


def _edge(one: Histogram) -> tuple[float, bool] | None:
    """Returns (edge above the 95th percentile, whether it exists); the last bucket has no upper edge."""
    if one.metric != "sandbox_spinup_seconds" or not one.edges or not one.counts or one.counts[-1] <= 0:
        return None
    aim = P95 * one.counts[-1]
    inside = [edge for edge, count in zip(one.edges, one.counts, strict=False) if count >= aim]
    return (inside[0], True) if inside else (one.edges[-1], False)


def starting(inputs: Inputs) -> Check:
    """Compares create rate x spin-up (Little's law) with the number that may start at once."""
    here, took, plan = room(inputs, "starting"), spinup(inputs), inputs.plan
    most = float(plan.concurrency) if plan.concurrency is not None else math.inf
    expected = plan.create_rate * took.seconds if plan.create_rate is not None and took is not None else None
    least = min(expected, most) if expected is not None else None
    if here.free is None:
        status: Status = "unknown"
    elif most <= STARTING_SPARE * here.free:
        # Even all of them at once would fit.
        status, least = _fits(most, here.free, STARTING_SPARE, here.exact), least if least is not None else most
    else:
        sure = here.exact and took is not None and took.exact
        status = _fits(least, here.free, STARTING_SPARE, sure)
    return Check(
        "starting_limit", status, _starting_words(here, took, plan.create_rate, least),
        _starting_fix(status, here, took, plan.create_rate),
        value=least, limit=here.free, unit="sandboxes",
    )  # fmt: skip


def _starting_words(here: Room, took: Spinup | None, rate: float | None, need: float | None) -> str:
    parts = [took.words if took is not None else "no spin-up time is known"]
    if rate is None:
        parts.append("no create rate is planned (--create-rate)")
    elif took is not None and need is not None:
        parts.append(f"{number(rate)}/s x {span(took.seconds)} = {number(math.ceil(need))} starting at once")
    free = "how many may start at once is not reported"
    if here.limit is not None:
        free = here.left("starting now", "may")
    return "; ".join([*parts, free])


def _starting_fix(status: Status, here: Room, took: Spinup | None, rate: float | None) -> str:
    if status == "ok":
        return ""
    if status != "unknown":
        if here.free is not None and here.free > 0 and took is not None and took.seconds > 0:
            return f"pace creation to {number(STARTING_SPARE * here.free / took.seconds)}/s, or keep a warm pool"
        return "wait until the starting sandboxes are ready, or ask the provider for a higher limit"
    if here.limit is None:
        return "set limits = { starting = N } under [run.NAME.preflight]; providers seldom report this limit"
    if rate is None:
        return "give --create-rate"
    return "start one sandbox to measure its spin-up time, or set spinup under [run.NAME.preflight]"


# ---- creation


def create_rate(inputs: Inputs) -> Check:
    """Compares the planned rate with the limits per second, and the needed creations with the limits per hour."""
    here, planned = room(inputs, "creates_per_second"), inputs.plan.create_rate
    seconds: Status = "unknown" if here.free is None else _fits(planned, here.free, QUOTA_SPARE, here.exact)
    hours, details = _per_hour(inputs)
    status = worst([seconds, *hours])
    plan = f"{number(planned)}/s planned" if planned is not None else "no create rate is planned (--create-rate)"
    limit = f"{number(here.free)}/s free" if here.free is not None else "the limit per second is not reported"
    return Check(
        "create_rate", status, f"{plan}; {limit}", _rate_fix(status, planned, here),
        value=planned, limit=here.free, unit="sandboxes/s", details=details,
    )  # fmt: skip


def _per_hour(inputs: Inputs) -> tuple[list[Status], tuple[str, ...]]:
    """Compares the least creations per hour, and those at the planned rate, with the limit."""
    here, plan = room(inputs, "creates_per_hour"), inputs.plan
    if here.free is None:
        return [], ()
    least = float(plan.concurrency or 0)
    if plan.rollout_deadline is not None:
        # No sandbox outlasts its deadline, so each slot is filled again that often.
        least *= max(1.0, 3600.0 / plan.rollout_deadline)
    words = f"per hour: at least {number(least)} needed, {number(here.free)} free"
    if least > here.free:
        return ["fail"], (words,)
    if plan.create_rate is not None and 3600.0 * plan.create_rate > here.free:
        return ["warn"], (f"{words}; used up after {span(here.free / plan.create_rate)} at the planned rate",)
    return [], (words,)


def _rate_fix(status: Status, planned: float | None, here: Room) -> str:
    if status == "ok":
        return ""
    if status == "unknown":
        return "give --create-rate" if planned is None else f"read it on the provider's plan page {CONFIGURE}"
    pace = f"pace creation to {number(QUOTA_SPARE * here.free)}/s" if here.free else "pace creation"
    return f"{pace}, or ask the provider for a higher limit"


CHECKS: tuple[Callable[[Inputs], Check], ...] = (quota, starting, create_rate)
