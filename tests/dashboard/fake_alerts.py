"""Alerts as a night of a real run leaves them: two fire, one is pending, one silenced, one inhibited, five are over."""

import zlib
from urllib.parse import urlencode

from msgspec import structs

from server.query.types import AlertInfo, DeliveryInfo, RuleInfo
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader

NOW = fake.NOW
_NONE = "no source yet: "
_SPIN, _BOXES, _COST = _NONE + "sandbox_spinup_seconds", _NONE + "sandboxes", _NONE + "cost_usd_per_million_tokens"
_KV = "kv_cache_usage_ratio"

# (name, severity, class, expression, signal, threshold, what is missing)
RULES: tuple[tuple[str, str, str, str, str, float | None, str], ...] = (
    ("RunStalled", "critical", "liveness", "run_stalled_seconds > 900 for 1m", "", 900.0, ""),
    ("TargetDown", "critical", "liveness", "up == 0 for 1m", "", 0.0, ""),
    ("EngineDead", "critical", "liveness", "generator_tokens_per_second == 0 for 2m", "", 0.0, ""),
    ("NonFiniteGradient", "critical", "liveness", "gradient_norm is not finite", "", None, _NONE + "gradient_norm"),
    ("DataTrust", "warning", "liveness", "unmapped_keys > 20 for 10m", "", 20.0, ""),
    ("TrainerStarved", "critical", "tuning", "trainer_wait_ratio > 0.4 for 5m", "trainer_wait_ratio", 0.4, ""),
    ("StalenessHigh", "critical", "tuning", "staleness_versions > 6 for 5m", "staleness_versions", 6.0, ""),
    ("ZeroAdvantageHigh", "warning", "tuning", "zero_advantage_ratio > 0.5 for 10m", "zero_advantage_ratio", 0.5, ""),
    ("LengthDrift", "warning", "tuning", "drift of response_tokens for 10m", "response_tokens", None, ""),
    ("DiscardHigh", "warning", "tuning", "discard_ratio > 0.5 for 10m", "", 0.5, ""),
    ("KVCacheExhausted", "warning", "infrastructure", f"{_KV} >= 0.97 for 5m", _KV, 0.97, ""),
    ("Preemptions", "warning", "infrastructure", "increase of preemptions over 5m > 100", "", 100.0, ""),
    ("SandboxSpinUpSlow", "warning", "infrastructure", "sandbox_spinup_seconds > 30 for 5m", "", 30.0, _SPIN),
    ("SandboxPendingLong", "critical", "infrastructure", "sandbox_oldest_pending_seconds > 600", "", 600.0, _BOXES),
    ("SandboxInitFailures", "warning", "infrastructure", "increase of sandbox_failures over 10m > 5", "", 5.0, _BOXES),
    ("QuotaLow", "critical", "infrastructure", "quota_remaining_ratio < 0.1", "", 0.1, _NONE + "quota_remaining_ratio"),
    ("CreditLow", "critical", "cost", "credit_remaining_usd < 100", "", 100.0, _NONE + "credit_remaining_usd"),
    ("WeightSyncSlow", "warning", "infrastructure", "weight_sync_seconds > 60 for 5m", "weight_sync_seconds", 60.0, ""),
    ("AllZeroRewards", "critical", "tuning", "reward == 0 for 10m", "reward", 0.0, ""),
    ("ToolErrors", "warning", "tuning", "tool_error_ratio > 0.3 for 5m", "", 0.3, _NONE + "tool_error_ratio"),
    ("TruncationHigh", "warning", "tuning", "truncation_ratio > 0.2 for 10m", "truncation_ratio", 0.2, ""),
    ("EntropyCollapse", "warning", "tuning", "entropy < 0.05 for 10m", "", 0.05, ""),
    ("MismatchHigh", "warning", "tuning", "mismatch_kl > 0.1 for 10m", "", 0.1, ""),
    ("CostOverTarget", "warning", "cost", "cost_usd_per_million_tokens > 40 for 30m", "", 40.0, _COST),
    ("QueueGrowing", "info", "tuning", "forecast of queue_samples over 1h > 4096", "queue_samples", 4096.0, ""),
)  # fmt: skip

SUMMARIES = {
    "TrainerStarved": "The trainer waits 74% of each step for rollouts; 8 H200 stand idle.",
    "KVCacheExhausted": "KV cache 98% full: 1,161 requests wait, 41 preemptions a minute.",
    "ZeroAdvantageHigh": "53% of groups carry no gradient, most of them all solved.",
    "TargetDown": "vllm-1 does not answer: connection refused.",
    "StalenessHigh": "Trajectories are 6.4 versions behind; the bound is 6.",
}


def rule(name: str) -> RuleInfo:
    """A rule of the pack."""
    row = next(row for row in RULES if row[0] == name)
    return RuleInfo(row[0], row[1], row[2], row[3], SUMMARIES.get(name, ""), True, row[6], row[4], row[5])


def alert(
    name: str, value: float, unit: str, seconds: float, state: str = "firing", run: str = fake.RICH, **series: str
) -> AlertInfo:
    """An alert that became true ``seconds`` ago."""
    of = rule(name)
    labels = {"alertname": name, "run": run, "severity": of.severity, "class": of.class_, **series}
    fingerprint = f"{zlib.crc32(repr(sorted(labels.items())).encode()):08x}" * 2
    began = NOW - seconds
    fired = None if state == "pending" else began + 300
    notes = {"summary": SUMMARIES[name]} if name in SUMMARIES else {}
    return AlertInfo(
        run, name, state, of.severity, labels, notes, value, unit, of.signal, began, fired, None, fingerprint,  # type: ignore[arg-type]
        url=moment(run, began, began),
    )  # fmt: skip


def moment(run: str, began: float, ended: float) -> str:
    """As the server has it: half an hour before, a quarter after."""
    return "/?" + urlencode({"run": run, "start": f"{began - 1800:.0f}", "end": f"{ended + 900:.0f}"})


def over(name: str, value: float, unit: str, ago: float, lasted: float, why: str = "", **series: str) -> AlertInfo:
    """An alert that was resolved ``ago`` seconds ago, after firing for ``lasted``."""
    made = alert(name, value, unit, ago + lasted + 300, "resolved", **series)
    return structs.replace(made, resolved_at=NOW - ago, reason=why, url=moment(made.run, made.active_at, NOW - ago))


STARVED = alert("TrainerStarved", 0.742, "ratio", 1020)
FULL = alert("KVCacheExhausted", 0.981, "ratio", 2460)
WAITS = alert("ZeroAdvantageHigh", 0.53, "ratio", 240, "pending", basis="completed")
DOWN = alert("TargetDown", 0.0, "", 640, target="vllm-1")
STALE = structs.replace(
    alert("StalenessHigh", 6.4, "versions", 900, level="trajectory"), muted="inhibited by TargetDown (liveness)"
)


def sent(
    receiver: str, kind: str, names: tuple[str, ...], seconds: float, status: str = "sent", **more: object
) -> DeliveryInfo:
    """A notification of ``seconds`` ago."""
    at = NOW - seconds
    made = DeliveryInfo(
        fake.RICH, receiver, kind, status, names, at, at + 0.4 if status == "sent" else None, 1, None, "200 OK"
    )
    return structs.replace(made, **more)


def fill(reader: MemoryReader, silenced: bool = True) -> MemoryReader:
    """The whole night, on the reader of `fake.reader`."""
    reader.rule_rows = [rule(row[0]) for row in RULES]
    history = (
        over("SandboxSpinUpSlow", 34.2, "seconds", 5400, 780, provider="modal"),
        over("WeightSyncSlow", 71.0, "seconds", 9000, 360),
        over("TargetDown", 1.0, "", 14_400, 95, target="vllm-0"),
        over("ZeroAdvantageHigh", 0.48, "ratio", 26_000, 4200, basis="completed"),
        over("TrainerStarved", 0.51, "ratio", 61_000, 1500, "the run is paused"),
    )
    reader.set_alerts(STARVED, FULL, WAITS, DOWN, STALE, *history)
    reader.delivery_rows = [
        sent("oncall", "pagerduty", ("TrainerStarved firing",), 719, answer="202 Event processed"),
        sent("team", "slack", ("TrainerStarved firing",), 719),
        sent("team", "slack", ("KVCacheExhausted firing",), 2159),
        sent("grafana", "alertmanager", ("TrainerStarved firing", "KVCacheExhausted firing"), 60, "pending", attempts=3,
             next_at=NOW + 20, answer="503 Service Unavailable"),
        sent("team", "slack", ("SandboxSpinUpSlow resolved",), 5400),
        sent("archive", "webhook", ("SandboxSpinUpSlow resolved",), 5400, "failed",
             answer="404 Not Found: no such hook"),
    ]  # fmt: skip
    if silenced:
        matchers = {"alertname": "TargetDown", "run": fake.RICH, "target": "vllm-1"}
        reader.put_silence(matchers, NOW - 300, NOW + 3300, "alice", "node drained for a new driver")
    return reader
