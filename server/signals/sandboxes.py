"""Sandboxes: states, failures, durations."""

from collections import defaultdict
from itertools import pairwise

from server.signals.aggregates import last_sum
from server.signals.model import TICK_WINDOW_SECONDS, Answer, Counter, NotApplicable, Unknown, Value, View, signal
from server.signals.observed_histograms import observed, quantile
from server.signals.sandbox_window import NEVER
from server.signals.window import Gauge

# ---- sandbox gaps
# Reasons why sandbox signals have no value.

NO_SOURCE = (
    'no sandbox provider is read: add it as a target (collector = "prime_sandboxes", ...) or post what create() does '
    "to /api/v1/runs/{run}/sandboxes"
)
NEEDS_NONE = "this task uses no sandbox"


def metered(view: View, metric: str) -> list[Gauge]:
    """A source's own count of sandboxes, used only where no records of single sandboxes are read."""
    return view.fresh(metric) if view.sandboxes.silent(view.now) == NEVER else []


def missing(view: View, *, reported: bool = False) -> Answer | None:
    """Why there is no value: not applicable without sandboxes, unknown without a recent answer. None: there is one.

    ``reported``: the run's own files have records of ended sandboxes. They are valid without a provider; where a
    provider is read, its missing answers count.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    why = view.sandboxes.silent(view.now)
    if why == NEVER:
        return None if reported else Unknown(NO_SOURCE)
    return Unknown(why) if why else None


STATES = ("queued", "building_image", "starting", "running", "paused", "stopping", "unknown")


@signal(title="Sandboxes", unit="sandboxes", actor="sandbox", inputs=("sandboxes",), cadence="tick", hint=NO_SOURCE)
def sandboxes(view: View) -> Answer:
    """Live sandboxes of the run by state, from the providers' last answers.

    Starting is separate from running, because providers limit starts. Without records of single sandboxes the source's
    own counts are used, with only the states that it reports.
    """
    metered_counts: dict[str, float] = defaultdict(float)
    for gauge in metered(view, "sandboxes"):
        metered_counts[dict(gauge.labels).get("state", "unknown")] += gauge.last
    if metered_counts and view.facts.get("has_sandbox") != 0:
        return [Value(count, (("state", state),)) for state, count in sorted(metered_counts.items())]
    counts = view.sandboxes.by_state()
    return missing(view) or [Value(float(counts[state]), (("state", state),)) for state in STATES]


@signal(title="Sandbox creations", unit="sandboxes/s", actor="sandbox", cadence="tick", hint=NO_SOURCE)
def sandbox_creates_per_second(view: View) -> Answer:
    """Sandboxes requested per second over 5 minutes."""
    start = view.now - TICK_WINDOW_SECONDS
    requested = sum(1 for ts in view.sandboxes.created if start < ts <= view.now)
    return missing(view) or [Value(requested / TICK_WINDOW_SECONDS)]


@signal(title="Sandbox outcomes", unit="sandboxes/s", actor="sandbox", cadence="tick", hint=NO_SOURCE)
def sandbox_outcomes_per_second(view: View) -> Answer:
    """Sandboxes per second that became ready, were refused by the provider (rate limit, quota, credit, capacity) or
    failed otherwise, over 5 minutes. Compare with the creations: what they exceed the ready ones by, queues.
    """
    gap = missing(view)
    found = view.sandboxes.outcomes(view.now) if gap is None else {}
    return gap or [Value(count / TICK_WINDOW_SECONDS, (("outcome", name),)) for name, count in found.items()]


@signal(title="Dangling sandboxes", unit="sandboxes", actor="sandbox", cadence="tick", hint=NO_SOURCE, watch=1.0)
def sandboxes_dangling(view: View) -> Answer:
    """Live sandboxes in the run's accounts whose run has ended or is unknown.

    They use quota and cost money.
    """
    over = len(view.sandboxes.own) if view.lifecycle in ("finished", "crashed") else 0
    return missing(view) or [Value(float(len(view.sandboxes.foreign) + over))]


@signal(title="Unreachable sandboxes", unit="sandboxes", actor="sandbox", cadence="tick", hint=NO_SOURCE, watch=1.0)
def sandboxes_unreachable(view: View) -> Answer:
    """Sandboxes that the provider reports as running but that do not respond (if the provider reports it)."""
    lost = sum(1 for record in view.sandboxes.own.values() if record.unreachable)
    return missing(view) or [Value(float(lost))]


_QUANTILES = (("p50", 0.50), ("p95", 0.95))


@signal(
    title="Sandbox commands",
    unit="seconds",
    actor="sandbox",
    inputs=("sandbox_exec_seconds",),
    cadence="tick",
    hint="no source times commands in sandboxes (agent-sandbox's router does; so can a push)",
)
def sandbox_exec_seconds(view: View) -> Answer:
    """Duration of commands that ended in sandboxes within 5 minutes, from the source's own buckets.

    After the spin-up this is what a rollout waits for.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    pools = [pool for pool in view.observed.get("sandbox_exec_seconds", ()) if pool.fresh(view.now)]
    if not pools:
        return Unknown(sandbox_exec_seconds.hint)
    buckets = observed(pools, view.now)
    if not buckets:
        return Unknown("no command ended in a sandbox within 5 minutes")
    return [Value(quantile(buckets, q), (("stat", name),)) for name, q in _QUANTILES]


@signal(title="Sandbox failures", unit="ratio", actor="sandbox", cadence="tick", hint=NO_SOURCE)
def sandbox_failure_ratio(view: View) -> Answer:
    """Failed sandboxes / sandboxes that failed or became ready within 5 minutes.

    In rewards alone such a failure looks like a hard task.
    """
    gap = missing(view)
    if gap is not None:
        return gap
    failed, decided = view.sandboxes.decided(view.now)
    return [Value(failed / decided)] if decided else Unknown("no sandbox became ready or failed within 5 minutes")


@signal(title="Refused sandboxes", unit="ratio", actor="sandbox", cadence="tick", hint=NO_SOURCE)
def sandbox_refused_ratio(view: View) -> Answer:
    """Sandboxes that the provider refused, by cause / sandboxes that failed or became ready within 5 minutes."""
    gap = missing(view)
    if gap is not None:
        return gap
    shares = view.sandboxes.refused(view.now)
    if not shares:
        return Unknown("no sandbox became ready or failed within 5 minutes")
    return [Value(share, (("cause", cause),)) for cause, share in shares.items()]


@signal(
    title="Rollouts lost to sandboxes",
    unit="ratio",
    actor="sandbox",
    inputs=("rollouts_seen_total", "rollouts_infra_failed_total"),
    cadence="tick",
    hint="no source reports which rollouts were lost to their sandbox (the traces of verifiers and prime-rl do)",
    # Each lost rollout bends its group's advantages; 5 to 15 % is what users of spot machines report as harmful.
    watch=0.02,
    critical=0.10,
)
def sandbox_failed_rollout_ratio(view: View) -> Answer:
    """Rollouts lost to their sandbox / rollouts in sandboxes that ended, without evaluation, over 5 minutes.

    They return a zero or nothing, which a trainer cannot distinguish from a hard task.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    ended = list(view.gauges.get("rollouts_seen_total", ()))
    if not ended:
        return Unknown(sandbox_failed_rollout_ratio.hint)
    # These counters change only when a rollout ends, so an old sample is a window without rollouts and not stale.
    seen = sum(gauge.increase(view.now)[0] for gauge in ended)
    lost = sum(gauge.increase(view.now)[0] for gauge in view.gauges.get("rollouts_infra_failed_total", ()))
    return [Value(lost / seen)] if seen > 0 else Unknown("no rollout in a sandbox ended within 5 minutes")


@signal(
    title="Oldest pending sandbox",
    unit="seconds",
    actor="sandbox",
    cadence="tick",
    hint=NO_SOURCE,
    # A cold image pull takes minutes; ten are longer than any rollout should wait.
    watch=180.0,
    critical=600.0,
)
def sandbox_oldest_pending_seconds(view: View) -> Answer:
    """Seconds since the oldest sandbox that is not ready was requested. It is in no spin-up time until it ends."""
    gap = missing(view)
    if gap is not None:
        return gap
    # Without pending sandboxes the value is zero and known.
    return [Value(max(view.sandboxes.waiting(view.now), default=0.0))]


# ---- sandbox account
# Quotas, credit and cost of the sandbox provider's account.

HINT = "no provider reports its quota; state limits with `rollscope preflight`"


def _quotas(view: View, metric: str) -> Answer:
    """A value per target and resource. Series with other labels are summed, because a limit is the account's."""
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for gauge in view.fresh(metric):
        sums[dict(gauge.labels).get("resource", ""), gauge.target] += gauge.last
    values = [
        Value(value, (("resource", resource), ("target", target))) for (resource, target), value in sorted(sums.items())
    ]
    return values or Unknown(HINT)


@signal(
    title="Sandbox quota in use",
    unit="quota",
    actor="sandbox",
    inputs=("sandbox_quota_used",),
    cadence="tick",
    hint=HINT,
)
def sandbox_quota_used(view: View) -> Answer:
    """Quota in use by resource and account (target): sandboxes, cores, creations per second or hour, GB.

    A share alone does not show how many more sandboxes will start.
    """
    return _quotas(view, "sandbox_quota_used")


@signal(
    title="Sandbox quota granted",
    unit="quota",
    actor="sandbox",
    inputs=("sandbox_quota_limit",),
    cadence="tick",
    hint=HINT,
)
def sandbox_quota_limit(view: View) -> Answer:
    """Quota granted by resource and account (target): sandboxes, cores, creations per second or hour, GB.

    It is the number that a provider can raise.
    """
    return _quotas(view, "sandbox_quota_limit")


@signal(
    title="Sandbox quota used",
    unit="ratio",
    actor="sandbox",
    inputs=("sandbox_quota_used", "sandbox_quota_limit"),
    cadence="tick",
    hint="no provider reports both a limit and its use; state limits with `rollscope preflight`",
    watch=0.8,
    critical=0.9,
)
def sandbox_quota_used_ratio(view: View) -> Answer:
    """Used share of a provider's quota by resource; of several accounts, the fullest.

    One burst of dispatches uses up the last tenth.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    limits = {(g.target, g.labels): g.last for g in view.fresh("sandbox_quota_limit") if g.last > 0}
    worst: dict[str, float] = {}
    for gauge in view.fresh("sandbox_quota_used"):
        limit = limits.get((gauge.target, gauge.labels))
        if limit is not None:
            resource = dict(gauge.labels).get("resource", "")
            worst[resource] = max(worst.get(resource, 0.0), gauge.last / limit)
    values = [Value(share, (("resource", resource),)) for resource, share in sorted(worst.items())]
    return values or Unknown(sandbox_quota_used_ratio.hint)


@signal(
    title="Sandbox credit",
    unit="usd",
    actor="sandbox",
    inputs=("sandbox_credit_usd",),
    cadence="tick",
    hint="no provider reports its credit (Prime does, by its wallet)",
)
def sandbox_credit_usd(view: View) -> Answer:
    """Credit left with the sandbox providers that report it."""
    gauges = view.fresh("sandbox_credit_usd")
    return [Value(last_sum(gauges))] if gauges else Unknown(sandbox_credit_usd.hint)


# Bills are booked in steps: over less than a minute a rate is noise.
SHORTEST_SECONDS = 60.0
# Hours. Upper bound for a credit that hardly falls: one year.
MOST_HOURS = 8760.0


def _burned(gauge: Gauge) -> tuple[float, float]:
    """(dollars, seconds) by which the balance fell within the window; a top-up is no negative burn."""
    points = list(gauge.points)
    spent = sum(max(0.0, old - new) for (_, old), (_, new) in pairwise(points))
    return spent, points[-1][0] - points[0][0]


@signal(
    title="Credit lasts",
    unit="hours",
    actor="sandbox",
    inputs=("sandbox_credit_usd", "sandbox_cost_usd_per_hour"),
    cadence="tick",
    hint="no provider reports its credit (Prime does, by its wallet)",
    watch=48.0,
    critical=24.0,
    higher_is_worse=False,
)
def sandbox_credit_hours(view: View) -> Answer:
    """Hours until the sandbox credit is used up, at the provider's rate or at the decrease within 5 minutes."""
    gauges = view.fresh("sandbox_credit_usd")
    if not gauges:
        return Unknown(sandbox_credit_hours.hint)
    rates = []
    for gauge in gauges:
        spent, seconds = _burned(gauge)
        if seconds >= SHORTEST_SECONDS:
            rates.append((gauge.last, spent / seconds))
    reported = [gauge.last for gauge in view.fresh("sandbox_cost_usd_per_hour")]
    if reported and sum(reported) > 0:
        return [Value(min(MOST_HOURS, sum(gauge.last for gauge in gauges) / sum(reported)))]
    if not rates:
        return Unknown("the credit must be observed for a minute to measure its decrease")
    hours = [credit / rate / 3600 if rate > 0 else MOST_HOURS for credit, rate in rates]
    return [Value(min([MOST_HOURS, *hours]))]


@signal(
    title="Sandbox cost",
    unit="usd/h",
    actor="sandbox",
    inputs=("sandbox_cost_usd_per_hour",),
    cadence="tick",
    hint="no provider reports a spending rate or prices",
)
def sandbox_cost_usd_per_hour(view: View) -> Answer:
    """Dollars per hour for sandboxes: the provider's rate for the account, or else that of the run's live sandboxes."""
    reported = view.fresh("sandbox_cost_usd_per_hour")
    if reported:
        return [Value(last_sum(reported))]
    gap = missing(view)
    if gap is not None:
        return gap
    prices = [record.cost_usd_per_hour for record in view.sandboxes.own.values()]
    measured = [price for price in prices if price is not None]
    return [Value(sum(measured))] if measured else Unknown(sandbox_cost_usd_per_hour.hint)


COUNTERS = (
    Counter(
        name="sandboxes_created_total",
        title="Sandboxes created",
        unit="sandboxes",
        actor="sandbox",
        help="Sandboxes of the run, each id counted once.",
        metric="sandbox_created",
        of="sandbox",
    ),
    Counter(
        name="sandbox_failures_total",
        title="Sandbox failures",
        unit="sandboxes",
        actor="sandbox",
        help="Sandboxes that failed, each id counted once, by cause. Without records, the source's own count.",
        metric="sandbox_failed",
        of="sandbox",
        by=("cause",),
        also="sandbox_failures_total",
    ),
)
"""Counters of this topic, which are counted as records arrive."""
