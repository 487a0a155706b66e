"""What signals follow from what a format of rollout records tells; see `docs/reference/rollouts.md` for pushed ones."""

from collections.abc import Collection, Mapping

from collectors.model import Basis, Labels

_GROUPS = ("group_id", "reward")
_WATCHED = (("response_tokens", "consumptions"), ("turns", "consumptions"), ("tool_calls", "consumptions"))

NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "discarded_rollout_ratio": (("failures",),),
    "drift_since_step": _WATCHED,
    "drift_slope_ratio": _WATCHED,
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
"""Signal -> fields of `collectors.model.Rollout` it needs, any of several sets. Not fields: ``parts`` (a rollout is
told of while it is in flight), ``failures`` (those that failed are told, too), ``turn versions`` (with what changed its
environment). ``sampled`` among what a format tells: of some rollouts only."""

WHOLE = frozenset({
    "discarded_rollout_ratio", "in_flight_ratio", "in_flight_rollouts", "infra_failure_ratio",
    "production_samples_per_second", "rollout_exit_ratio", "rollouts_in_flight",
})  # fmt: skip
"""What counts rollouts: of a sample it is not known."""


def gives(*fields: str) -> dict[tuple[str, Labels], Basis]:
    """`Collector.gives` of a format whose records tell these fields: its signals, each worked out from records."""
    return {(signal, ()): "derived" for signal in NEEDS if not missing(signal, fields)}


def lacks(*fields: str) -> dict[str, str]:
    """`Collector.hints` of the same: signal -> what its records do not tell."""
    found = {signal: missing(signal, fields) for signal in NEEDS}
    return {signal: f"its records do not tell {' or '.join(absent)}" for signal, absent in found.items() if absent}


def missing(signal: str, fields: Collection[str]) -> tuple[str, ...]:
    """Of the set that comes nearest what is not among ``fields``; () where the signal follows."""
    if signal in WHOLE and "sampled" in fields:
        return ("all rollouts",)
    absent = [tuple(one for one in needed if one not in fields) for needed in NEEDS[signal]]
    return min(absent, key=len)
