"""Which signals can be computed from which fields of rollout records; docs/reference/rollouts.md lists the fields."""

from collections.abc import Collection, Mapping

_GROUPS = ("group_id", "reward")
_DRIFT = (("response_tokens", "consumptions"), ("turns", "consumptions"), ("tool_calls", "consumptions"))

REQUIRED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "discarded_rollout_ratio": (("failures",),),
    "drift_baseline": _DRIFT,
    "drift_since_step": _DRIFT,
    "drift_slope_ratio": _DRIFT,
    "in_flight_ratio": (("parts", "the cap on rollouts in flight"),),
    "in_flight_rollouts": (("parts",),),
    "infra_failure_ratio": (("failures",),),
    "mixed_version_ratio": (("version_start", "version_finish"), ("token_versions",)),
    "old_state_turn_ratio": (("turn versions",),),
    "production_samples_per_second": (("finished_at",), ("consumptions",)),
    "response_length_drift_ratio": (("response_tokens", "consumptions"),),
    "response_tokens": (("response_tokens",),),
    "reward": (("reward",),),
    "rollout_exit_ratio": (("consumptions",), ("exit",)),
    "rollouts_in_flight": (("parts",),),
    "sample_age_seconds": (("finished_at", "consumptions"),),
    "solve_band_ratio": (_GROUPS,),
    "solve_ratio": (_GROUPS,),
    "staleness_estimated_versions": (("dispatched_at", "finished_at", "consumptions"),),
    "staleness_part_versions": (
        ("version_start", "version_finish", "consumptions"), ("token_versions", "consumptions"),
    ),
    "staleness_versions": (
        ("version_start", "consumptions"), ("version_dispatched", "consumptions"), ("token_versions", "consumptions"),
    ),
    "tail_index_ratio": (("response_tokens",),),
    "tool_calls": (("tool_calls",),),
    "tool_calls_drift_ratio": (("tool_calls", "consumptions"),),
    "turns": (("turns",),),
    "turns_drift_ratio": (("turns", "consumptions"),),
    "zero_advantage_environment_ratio": ((*_GROUPS, "environment"),),
    "zero_advantage_group_ratio": (_GROUPS,),
    "zero_advantage_groups": (_GROUPS,),
    "zero_advantage_low_ratio": (_GROUPS,),
    "zero_advantage_ratio": (_GROUPS,),
}  # fmt: skip
"""Signal -> sets of values of `Collector.record_fields`; any one of the sets is enough."""

NEEDS_ALL_ROLLOUTS = frozenset({
    "discarded_rollout_ratio", "in_flight_ratio", "in_flight_rollouts", "infra_failure_ratio",
    "production_samples_per_second", "rollout_exit_ratio", "rollouts_in_flight",
})  # fmt: skip
"""Signals that count rollouts. A sample of the rollouts does not give their number."""


def available_signals(fields: Collection[str]) -> list[str]:
    """The signals that can be computed from records with these fields, by name; none without fields."""
    return [signal for signal in REQUIRED if not missing_fields(signal, fields)]


def missing_fields(signal: str, fields: Collection[str]) -> tuple[str, ...]:
    """The fields missing from the required set that lacks the fewest; () if the signal can be computed."""
    if signal in NEEDS_ALL_ROLLOUTS and "sampled" in fields:
        return ("all rollouts",)
    return min((tuple(name for name in names if name not in fields) for names in REQUIRED[signal]), key=len)
