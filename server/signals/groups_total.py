"""Groups of rollouts that were complete, each once, by what they came to."""

from server.signals._model import Counter

COUNTER = Counter(
    name="groups_total",
    title="Groups",
    unit="groups",
    actor="queue",
    help="Train groups that were complete, each counted once, by outcome: mixed (a gradient), all_solved, none_solved, "
    "equal_unknown, too_few_valid; from records that tell of all.",
    metric="group_closed",
    of="rollout",
    by=("outcome",),
)
