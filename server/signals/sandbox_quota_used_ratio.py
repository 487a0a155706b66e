"""How much of each quota is used: the last tenth is gone within one burst of dispatches."""

from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._sandboxes import NEEDS_NONE

_HINT = "no provider tells both a limit and its use; state limits with `rollscope preflight`"


def _compute(view: View) -> Answer:
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
    return values or Unknown(_HINT)


SIGNAL = Signal(
    name="sandbox_quota_used_ratio",
    title="Sandbox quota used",
    unit="ratio",
    actor="sandbox",
    help="Used share of a provider's quota by resource; of several accounts, the fullest.",
    inputs=("sandbox_quota_used", "sandbox_quota_limit"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    watch=0.8,
    critical=0.9,
)
