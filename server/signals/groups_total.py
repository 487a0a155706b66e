"""Groups of rollouts that were complete, each once, by what they came to."""

from server.signals._model import Counter

COUNTER = Counter(
    name="groups_total",
    title="Groups",
    unit="groups",
    actor="queue",
    help="Completed training groups, each counted once, by outcome: mixed (has a gradient), all_solved, none_solved, "
    "equal_unknown, too_few_valid. Needs records of all rollouts.",
    metric="group_closed",
    of="rollout",
    by=("outcome",),
)
