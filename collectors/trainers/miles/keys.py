"""Keys of miles (31f1ca961) in addition to slime's: the fully asynchronous buffer, versions, equal groups, MFU."""

import re
from collections.abc import Iterable, Iterator, Mapping

from collectors.trainers.slime import keys as slime_keys
from collectors.trainers.slime.keys import BUSY, DROPPED, GRADED, ZERO, groups
from collectors.training_logs.model import Context, Key, Out, Piece

_BUFFER = "rollout/fully_async/"
# A run with several adapters has another kind of buffer with its own keys.
_ADAPTERS = "perf/fully_async/"
QUEUE = (f"{_BUFFER}queue_size", f"{_ADAPTERS}queue_length")
STALE = (f"{_BUFFER}stale_groups_filtered", f"{_ADAPTERS}stale_dropped")
FULLY_ASYNC = (*QUEUE, *STALE, f"{_BUFFER}avg_staleness", f"{_BUFFER}max_staleness")
# Shares of all groups, 0 to 1 in spite of the name (miles/ray/rollout/metrics.py:185).
ALL_ZERO, ALL_ONE = "rollout/zero_std/all_zero_percentage", "rollout/zero_std/all_one_percentage"
NONE_EQUAL = ("rollout/zero_std/count_0.0", "rollout/zero_std/count_1.0")

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    **slime_keys.KEYS,
    "perf/actor_train_mfu": Key("trainer_mfu_ratio", labels=BUSY),
    # Versions: current - oldest of the group, over all groups taken out, including those dropped as stale.
    f"{_BUFFER}avg_staleness": Key("staleness_versions_mean"),
    f"{_BUFFER}max_staleness": Key("staleness_versions_max"),
    f"{_BUFFER}aborted_groups_filtered": Key("rollout_errors", labels=(("type", "aborted_group"),)),
    "rollout/weight_version/max": Key("policy_version"),
    "rollout/weight_version/mixed_version_ratio": Key("mixed_version_ratio"),
    f"{_ADAPTERS}batch_n_samples": Key("trainer_samples"),
    f"{_ADAPTERS}batch_n_groups": Key("trainer_groups"),
    "train/train_rollout_kl": Key("mismatch_kl_mean"),
}

NEEDS = slime_keys.NEEDS | {*FULLY_ASYNC, ALL_ZERO, ALL_ONE, *NONE_EQUAL}

IGNORED = re.compile(
    rf"{slime_keys.IGNORED.pattern}|rollout/(?:weight_version|fully_async|tito_session_mismatch_rate)/.*"
    r"|eval/.*|(?:rollout|train)/step|[^/]+/perf/.*"
)


def derive(piece: Piece, context: Context) -> Iterable[Out]:
    values = piece.values
    queue = next((values[key] for key in QUEUE if key in values), None)
    if any(key in values for key in FULLY_ASYNC):
        # Only fully asynchronous rollouts have such a buffer.
        context.memory["mode"] = "async"
    # slime's share needs the batch size; miles logs the number of groups indirectly.
    equal_groups = list(_equal(values, context))
    yield from (
        output
        for output in slime_keys.derive(piece, context)
        if output[0] not in {metric for metric, _, _ in equal_groups}
    )
    yield from equal_groups
    if queue is not None:
        yield groups(queue, context)
    stale, size = next((values[key] for key in STALE if key in values), None), context.facts.get("group_size")
    if stale is not None and isinstance(size, float):
        yield "stale_dropped_rollouts", (), stale * size


def _equal(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups of equal rewards in the batch: their share, and the two causes if these explain all of them."""
    if ALL_ZERO not in values or ALL_ONE not in values:
        return
    if values.get(GRADED, 0.0) > 0:
        context.memory["graded"] = True
    if DROPPED not in values:
        group_count = _group_count(values, context)
        share = values[ALL_ZERO] + values[ALL_ONE]
        if values.get(GRADED, 0.0) > 0 and group_count is not None:
            share = values[ZERO] / group_count
        if values.get(GRADED, 0.0) == 0 or group_count is not None:
            yield "groups_zero_advantage_ratio", (), share
    if not context.memory.get("graded") and not values.get(DROPPED):
        yield "groups_none_solved_ratio", (), values[ALL_ZERO]
        yield "groups_all_solved_ratio", (), values[ALL_ONE]


def _group_count(values: Mapping[str, float], context: Context) -> float | None:
    """Groups in the batch: from a count and its share, else from the configuration."""
    for count, share in zip(NONE_EQUAL, (ALL_ZERO, ALL_ONE), strict=True):
        if values.get(count) and values[share] > 0:
            return values[count] / values[share]
    batch, size = context.facts.get("batch_samples"), context.facts.get("group_size")
    return batch / size if isinstance(batch, float) and isinstance(size, float) else None
