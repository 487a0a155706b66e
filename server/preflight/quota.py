"""Checks that the planned load fits the free quota of the accounts: at once, while starting, and per second.

A quota is known only if every account of the run reports it or the configuration caps them all; what is in use is
known only from a complete listing. Whatever is missing makes an answer "unknown", or worse where even the known part
does not fit, but never "ok".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectors.model import Histogram, Sandbox
from server.preflight.model import PENDING, SIZES, Check, Inputs, ReadTarget, Status, number, span, worst

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
    is_known: bool = True

    @property
    def free(self) -> float | None:
        return None if self.limit is None else self.limit - self.used

    def in_use_text(self, what: str) -> str:
        """Returns the text on the number of sandboxes that are ``what`` ("in use")."""
        if not self.is_known:
            return f"the number {what} is unknown"
        return f"{'' if self.exact else 'at least '}{number(self.used)} {what}"

    def left(self, what: str, state: str) -> str:
        """Returns the subtraction for a reported limit: "3 free: limit 10 - 7 in use"."""
        free, limit = number(self.free or 0.0), number(self.limit or 0.0)
        if not self.is_known:
            return f"at most {free} {state}: limit {limit}, {self.in_use_text(what)}"
        return f"{free} {state}: limit {limit} - {self.in_use_text(what)}"


def room(inputs: Inputs, resource: str) -> Room:
    """Returns limit and use of a resource, over all accounts of the run."""
    accounts = inputs.accounts()
    granted = [account.gauge("sandbox_quota_limit", resource) for account in accounts]
    limits = [limit for limit in granted if limit is not None]
    whole = sum(limits) if limits and len(limits) == len(granted) else None
    caps = [limit for limit in (whole, inputs.plan.limits.get(resource)) if limit is not None]
    uses = [_used(account, resource, inputs.now) for account in accounts]
    return Room(
        limit=min(caps, default=None),
        used=sum(used or 0.0 for used, _ in uses),
        exact=bool(uses) and all(exact for _, exact in uses),
        is_known=any(used is not None for used, _ in uses),
    )


def _used(seen: ReadTarget, resource: str, now: float) -> tuple[float | None, bool]:
    """Returns (number in use, whether it is complete)."""
    reported = seen.gauge("sandbox_quota_used", resource)
    if resource == "concurrent":
        counted = float(len(seen.held_sandboxes()))
    elif resource == "starting":
        counted = float(len([sandbox for sandbox in seen.held_sandboxes() if sandbox.state in PENDING]))
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
        sandbox
        for sandbox in seen.held_sandboxes()
        if sandbox.requested_at is not None and now - RATE_SECONDS < sandbox.requested_at <= now
    ]
    return len(created) / RATE_SECONDS


def quota(inputs: Inputs) -> Check:
    """Compares limit - used with the planned concurrency, and with the resources of that many sandboxes."""
    seats = room(inputs, "concurrent")
    planned = inputs.plan.concurrency
    refused = [
        f"{account.name}: {account.error}"
        for account in inputs.accounts()
        if account.error and account.error.kind == "quota"
    ]
    resources = [answer for name in SIZES if (answer := _resource(inputs, name)) is not None]
    outcome = _fits(planned, seats.free, QUOTA_SPARE, seats.exact) if seats.free is not None else "unknown"
    if seats.limit is None and any(answer.status == "ok" and answer.sure for answer in resources):
        outcome = "ok"  # some providers count cores, not sandboxes
    status = "fail" if refused else worst([outcome, *(answer.status for answer in resources)])
    return Check(
        "quota", status, _seats_words(seats, planned), _quota_fix(status, seats, planned),
        value=planned, limit=seats.free, unit="sandboxes",
        details=(*refused, *(answer.text for answer in resources), *inputs.unseen()),
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
        return f"{plan}, {seats.in_use_text('in use')}; the limit is not reported"
    return f"{plan}, {seats.left('in use', 'free')}"


def _quota_fix(status: Status, seats: Room, planned: int | None) -> str:
    if status == "unknown":
        return "give --concurrency" if planned is None else f"read the limit on the provider's plan page {CONFIGURE}"
    if status == "ok":
        return ""
    affordable = math.floor(QUOTA_SPARE * max(seats.free, 0.0)) if seats.free is not None else 0
    lower = f"lower the concurrency to {affordable}, " if affordable else ""
    return f"{lower}remove dangling sandboxes, or ask the provider for a higher limit"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result for one resource. ``sure``: its size is planned, not estimated from live sandboxes."""

    status: Status
    text: str
    sure: bool


def _resource(inputs: Inputs, name: str) -> _Answer | None:
    """Checks cores, memory, disk and GPUs: None without a limit or without the size of a sandbox."""
    resource_room, planned = room(inputs, name), inputs.plan.concurrency
    if resource_room.limit is None or planned is None:
        return None
    stated = inputs.plan.size.get(name)
    alive = sum(len(account.held_sandboxes()) for account in inputs.accounts())
    size = stated if stated is not None else resource_room.used / alive if alive and resource_room.exact else None
    if not size:
        return None
    status = _fits(planned * size, resource_room.limit - resource_room.used, QUOTA_SPARE, resource_room.exact)
    if stated is None and status == "fail":
        status = "warn"  # the mean of other sandboxes is a guess
    text = f"{name}: {number(planned * size)} needed ({number(size)} each"
    text += "" if stated is not None else ", as the live sandboxes use"
    return _Answer(
        status,
        f"{text}), {number(resource_room.limit - resource_room.used)} free of {number(resource_room.limit)}",
        bool(stated),
    )


# ---- starting


@dataclass(frozen=True, slots=True)
class Spinup:
    """The 95th percentile of known spin-ups. ``exact``: False when it is only a lower bound."""

    seconds: float
    exact: bool
    text: str


def spinup(inputs: Inputs) -> Spinup | None:
    """Returns how long a start takes, from records of the accounts, else from histograms, else from the plan.

    A pending sandbox that is older than most spin-ups counts with its age: it is in no list of finished ones, and
    it is what a wall looks like before anything fails.
    """
    done = sorted(seconds for sandbox in inputs.sandboxes() if (seconds := _took(sandbox)) is not None)
    ages = [
        inputs.now - sandbox.requested_at
        for sandbox in inputs.sandboxes()
        if sandbox.state in PENDING and sandbox.requested_at is not None and sandbox.requested_at <= inputs.now
    ]
    usual = _quantile(done) if done else inputs.plan.spinup
    late = [age for age in ages if age > (usual or 0.0)]
    if done:
        seconds_needed = _quantile(sorted([*done, *late]))
        more = f" and {len(late)} still pending for longer" if late else ""
        return Spinup(seconds_needed, not late, f"p95 of {len(done)} spin-ups{more} is {span(seconds_needed)}")
    if (paged := _of_histograms(inputs)) is not None:
        return paged
    if inputs.plan.spinup is not None:
        seconds_needed = max([inputs.plan.spinup, *late])
        return Spinup(
            seconds_needed, not late, f"spin-up as configured, {span(seconds_needed)}" if not late else _pending(late)
        )
    return Spinup(max(late), False, _pending(late)) if late else None


def _pending(ages: Sequence[float]) -> str:
    return f"no spin-up finished yet, the oldest of {len(ages)} is pending for {span(max(ages))}"


def _took(sandbox: Sandbox) -> float | None:
    if sandbox.ready_at is None or sandbox.requested_at is None or sandbox.ready_at < sandbox.requested_at:
        return None
    return sandbox.ready_at - sandbox.requested_at


def _quantile(ascending: Sequence[float]) -> float:
    return ascending[math.ceil(P95 * len(ascending)) - 1]


def _of_histograms(inputs: Inputs) -> Spinup | None:
    pages = [histogram.reading.histograms for histogram in inputs.seen if histogram.reading]
    edges = [edge for page in pages for histogram in page if (edge := _edge(histogram)) is not None]
    if not edges:
        return None
    seconds, exact = max(edge for edge, _ in edges), all(inside for _, inside in edges)
    more = "" if exact else "more than "
    return Spinup(seconds, exact, f"p95 of the spin-up histogram is {more}{span(seconds)}")


def _edge(histogram: Histogram) -> tuple[float, bool] | None:
    """Returns (edge above the 95th percentile, whether it exists); the last bucket has no upper edge."""
    if (
        histogram.metric != "sandbox_spinup_seconds"
        or not histogram.edges
        or not histogram.counts
        or histogram.counts[-1] <= 0
    ):
        return None
    aim = P95 * histogram.counts[-1]
    inside = [edge for edge, count in zip(histogram.edges, histogram.counts, strict=False) if count >= aim]
    return (inside[0], True) if inside else (histogram.edges[-1], False)


def starting(inputs: Inputs) -> Check:
    """Compares create rate x spin-up (Little's law) with the number that may start at once."""
    starting_room, took, plan = room(inputs, "starting"), spinup(inputs), inputs.plan
    count = float(plan.concurrency) if plan.concurrency is not None else math.inf
    expected = plan.create_rate * took.seconds if plan.create_rate is not None and took is not None else None
    least = min(expected, count) if expected is not None else None
    if starting_room.free is None:
        status: Status = "unknown"
    elif count <= STARTING_SPARE * starting_room.free:
        # Even all of them at once would fit.
        status, least = (
            _fits(count, starting_room.free, STARTING_SPARE, starting_room.exact),
            least if least is not None else count,
        )
    else:
        sure = starting_room.exact and took is not None and took.exact
        status = _fits(least, starting_room.free, STARTING_SPARE, sure)
    return Check(
        "starting_limit", status, _starting_words(starting_room, took, plan.create_rate, least),
        _starting_fix(status, starting_room, took, plan.create_rate),
        value=least, limit=starting_room.free, unit="sandboxes",
    )  # fmt: skip


def _starting_words(starting_room: Room, took: Spinup | None, rate: float | None, need: float | None) -> str:
    parts = [took.text if took is not None else "no spin-up time is known"]
    if rate is None:
        parts.append("no create rate is planned (--create-rate)")
    elif took is not None and need is not None:
        parts.append(f"{number(rate)}/s x {span(took.seconds)} = {number(math.ceil(need))} starting at once")
    free = "how many may start at once is not reported"
    if starting_room.limit is not None:
        free = starting_room.left("starting now", "may")
    return "; ".join([*parts, free])


def _starting_fix(status: Status, starting_room: Room, took: Spinup | None, rate: float | None) -> str:
    if status == "ok":
        return ""
    if status != "unknown":
        if starting_room.free is not None and starting_room.free > 0 and took is not None and took.seconds > 0:
            return (
                f"pace creation to {number(STARTING_SPARE * starting_room.free / took.seconds)}/s, or keep a warm pool"
            )
        return "wait until the starting sandboxes are ready, or ask the provider for a higher limit"
    if starting_room.limit is None:
        return "set limits = { starting = N } under [run.NAME.preflight]; providers seldom report this limit"
    if rate is None:
        return "give --create-rate"
    return "start one sandbox to measure its spin-up time, or set spinup under [run.NAME.preflight]"


# ---- creation


def create_rate(inputs: Inputs) -> Check:
    """Compares the planned rate with the limits per second, and the needed creations with the limits per hour."""
    rate_room, planned = room(inputs, "creates_per_second"), inputs.plan.create_rate
    seconds: Status = (
        "unknown" if rate_room.free is None else _fits(planned, rate_room.free, QUOTA_SPARE, rate_room.exact)
    )
    hours, details = _per_hour(inputs)
    status = worst([seconds, *hours])
    plan = f"{number(planned)}/s planned" if planned is not None else "no create rate is planned (--create-rate)"
    limit = f"{number(rate_room.free)}/s free" if rate_room.free is not None else "the limit per second is not reported"
    return Check(
        "create_rate", status, f"{plan}; {limit}", _rate_fix(status, planned, rate_room),
        value=planned, limit=rate_room.free, unit="sandboxes/s", details=details,
    )  # fmt: skip


def _per_hour(inputs: Inputs) -> tuple[list[Status], tuple[str, ...]]:
    """Compares the least creations per hour, and those at the planned rate, with the limit."""
    hour_room, plan = room(inputs, "creates_per_hour"), inputs.plan
    if hour_room.free is None:
        return [], ()
    least = float(plan.concurrency or 0)
    if plan.rollout_deadline is not None:
        # No sandbox outlasts its deadline, so each slot is filled again that often.
        least *= max(1.0, 3600.0 / plan.rollout_deadline)
    text = f"per hour: at least {number(least)} needed, {number(hour_room.free)} free"
    if least > hour_room.free:
        return ["fail"], (text,)
    if plan.create_rate is not None and 3600.0 * plan.create_rate > hour_room.free:
        return ["warn"], (f"{text}; used up after {span(hour_room.free / plan.create_rate)} at the planned rate",)
    return [], (text,)


def _rate_fix(status: Status, planned: float | None, rate_room: Room) -> str:
    if status == "ok":
        return ""
    if status == "unknown":
        return "give --create-rate" if planned is None else f"read it on the provider's plan page {CONFIGURE}"
    pace = f"pace creation to {number(QUOTA_SPARE * rate_room.free)}/s" if rate_room.free else "pace creation"
    return f"{pace}, or ask the provider for a higher limit"


CHECKS: tuple[Callable[[Inputs], Check], ...] = (quota, starting, create_rate)
