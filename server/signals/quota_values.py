"""What the quota signals share: one number per account and resource, as the provider's last answer has it."""

from collections import defaultdict

from server.signals.model import Answer, NotApplicable, Unknown, Value, View
from server.signals.sandbox_gaps import NEEDS_NONE

HINT = "no provider tells its quota; state limits with `rollscope preflight`"


def quotas(view: View, metric: str) -> Answer:
    """A value per target and resource. Series that differ in other labels are added up: a limit is of the account."""
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    found: dict[tuple[str, str], float] = defaultdict(float)
    for gauge in view.fresh(metric):
        found[dict(gauge.labels).get("resource", ""), gauge.target] += gauge.last
    values = [Value(value, (("resource", what), ("target", who))) for (what, who), value in sorted(found.items())]
    return values or Unknown(HINT)
