"""Quotas, credit and cost of the sandbox provider's account."""

from collections import defaultdict
from itertools import pairwise

from server.signals.model import Answer, Counter, NotApplicable, Signal, Unknown, Value, View
from server.signals.sandbox_gaps import NEEDS_NONE, missing
from server.signals.tick_windows import last_sum
from server.signals.window import Gauge

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


# ---- sandbox_quota_used

# Used part of each quota, in its own unit: a share alone does not show how many more sandboxes will start.


def _sandbox_quota_used(view: View) -> Answer:
    return _quotas(view, "sandbox_quota_used")


SANDBOX_QUOTA_USED = Signal(
    name="sandbox_quota_used",
    title="Sandbox quota in use",
    unit="quota",
    actor="sandbox",
    help="Quota in use by resource and account (target): sandboxes, cores, creations per second or hour, GB.",
    inputs=("sandbox_quota_used",),
    cadence="tick",
    compute=_sandbox_quota_used,
    hint=HINT,
)


# ---- sandbox_quota_limit

# Limit of each quota, in its own unit: the number that a provider can raise.


def _sandbox_quota_limit(view: View) -> Answer:
    return _quotas(view, "sandbox_quota_limit")


SANDBOX_QUOTA_LIMIT = Signal(
    name="sandbox_quota_limit",
    title="Sandbox quota granted",
    unit="quota",
    actor="sandbox",
    help="Quota granted by resource and account (target): sandboxes, cores, creations per second or hour, GB.",
    inputs=("sandbox_quota_limit",),
    cadence="tick",
    compute=_sandbox_quota_limit,
    hint=HINT,
)


# ---- sandbox_quota_used_ratio

# Used share of each quota: one burst of dispatches uses up the last tenth.

_SANDBOX_QUOTA_USED_RATIO_HINT = "no provider reports both a limit and its use; state limits with `rollscope preflight`"


def _sandbox_quota_used_ratio(view: View) -> Answer:
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
    return values or Unknown(_SANDBOX_QUOTA_USED_RATIO_HINT)


SANDBOX_QUOTA_USED_RATIO = Signal(
    name="sandbox_quota_used_ratio",
    title="Sandbox quota used",
    unit="ratio",
    actor="sandbox",
    help="Used share of a provider's quota by resource; of several accounts, the fullest.",
    inputs=("sandbox_quota_used", "sandbox_quota_limit"),
    cadence="tick",
    compute=_sandbox_quota_used_ratio,
    hint=_SANDBOX_QUOTA_USED_RATIO_HINT,
    watch=0.8,
    critical=0.9,
)


# ---- sandbox_credit_usd

# Credit left with the sandbox providers.

_SANDBOX_CREDIT_USD_HINT = "no provider reports its credit (Prime does, by its wallet)"


def _sandbox_credit_usd(view: View) -> Answer:
    gauges = view.fresh("sandbox_credit_usd")
    return [Value(last_sum(gauges))] if gauges else Unknown(_SANDBOX_CREDIT_USD_HINT)


SANDBOX_CREDIT_USD = Signal(
    name="sandbox_credit_usd",
    title="Sandbox credit",
    unit="usd",
    actor="sandbox",
    help="Credit left with the sandbox providers that report it.",
    inputs=("sandbox_credit_usd",),
    cadence="tick",
    compute=_sandbox_credit_usd,
    hint=_SANDBOX_CREDIT_USD_HINT,
)


# ---- sandbox_credit_hours

# How long the credit lasts at the rate it falls.

_SANDBOX_CREDIT_HOURS_HINT = "no provider reports its credit (Prime does, by its wallet)"
# Bills are booked in steps: over less than a minute a rate is noise.
SHORTEST_SECONDS = 60.0
# Hours. Upper bound for a credit that hardly falls: one year.
MOST_HOURS = 8760.0


def _burned(gauge: Gauge) -> tuple[float, float]:
    """(dollars, seconds) by which the balance fell within the window; a top-up is no negative burn."""
    points = list(gauge.points)
    spent = sum(max(0.0, old - new) for (_, old), (_, new) in pairwise(points))
    return spent, points[-1][0] - points[0][0]


def _sandbox_credit_hours(view: View) -> Answer:
    gauges = view.fresh("sandbox_credit_usd")
    if not gauges:
        return Unknown(_SANDBOX_CREDIT_HOURS_HINT)
    rates = []
    for gauge in gauges:
        spent, seconds = _burned(gauge)
        if seconds >= SHORTEST_SECONDS:
            rates.append((gauge.last, spent / seconds))
    told = [gauge.last for gauge in view.fresh("sandbox_cost_usd_per_hour")]
    if told and sum(told) > 0:
        return [Value(min(MOST_HOURS, sum(gauge.last for gauge in gauges) / sum(told)))]
    if not rates:
        return Unknown("the credit must be observed for a minute to measure its decrease")
    hours = [credit / rate / 3600 if rate > 0 else MOST_HOURS for credit, rate in rates]
    return [Value(min([MOST_HOURS, *hours]))]


SANDBOX_CREDIT_HOURS = Signal(
    name="sandbox_credit_hours",
    title="Credit lasts",
    unit="hours",
    actor="sandbox",
    help="Hours until the sandbox credit is used up, at the provider's rate or at the decrease within 5 minutes.",
    inputs=("sandbox_credit_usd", "sandbox_cost_usd_per_hour"),
    cadence="tick",
    compute=_sandbox_credit_hours,
    hint=_SANDBOX_CREDIT_HOURS_HINT,
    watch=48.0,
    critical=24.0,
    higher_is_worse=False,
)


# ---- sandbox_cost_usd_per_hour

# Cost of the run's sandboxes per hour: as reported by providers, else from the prices of the live ones.

_SANDBOX_COST_USD_PER_HOUR_HINT = "no provider reports a spending rate or prices"


def _sandbox_cost_usd_per_hour(view: View) -> Answer:
    told = view.fresh("sandbox_cost_usd_per_hour")
    if told:
        return [Value(last_sum(told))]
    gap = missing(view)
    if gap is not None:
        return gap
    prices = [record.cost_usd_per_hour for record in view.sandboxes.own.values()]
    known = [price for price in prices if price is not None]
    return [Value(sum(known))] if known else Unknown(_SANDBOX_COST_USD_PER_HOUR_HINT)


SANDBOX_COST_USD_PER_HOUR = Signal(
    name="sandbox_cost_usd_per_hour",
    title="Sandbox cost",
    unit="usd/h",
    actor="sandbox",
    help="Dollars per hour for sandboxes: the provider's rate for the account, or else that of the run's live "
    "sandboxes.",
    inputs=("sandbox_cost_usd_per_hour",),
    cadence="tick",
    compute=_sandbox_cost_usd_per_hour,
    hint=_SANDBOX_COST_USD_PER_HOUR_HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    SANDBOX_QUOTA_USED,
    SANDBOX_QUOTA_LIMIT,
    SANDBOX_QUOTA_USED_RATIO,
    SANDBOX_CREDIT_USD,
    SANDBOX_CREDIT_HOURS,
    SANDBOX_COST_USD_PER_HOUR,
)
