"""Rollouts in flight now, by state: as records tell one by one, else as the orchestrator counts them."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from server.rollouts.state import CENSUS
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._sandbox_book import PENDING

_HINT = (
    "this run reports no rollouts in flight "
    "(prime-rl prints them in the orchestrator log, TRL async logs `rollout/inflight`)"
)


def _compute(view: View) -> Answer:
    # Records that come when a rollout is over tell nothing of those that are not.
    if view.rollouts.watched:
        return [Value(float(count), (("state", state),)) for state, count in _census(view).items()]
    return _counted(view)


def _census(view: View) -> dict[str, int]:
    found = Counter(_states(view))
    return {state: found[state] for state in CENSUS}


def _states(view: View) -> Iterator[str]:
    """Who generates in a sandbox that is not ready yet, boots."""
    pending = {record.id for record in view.sandboxes.own.values() if record.state in PENDING}
    for one in view.rollouts.in_flight(view.now):
        boots = one.state in ("waiting_slot", "generating") and not pending.isdisjoint(one.sandboxes)
        yield "booting" if boots else one.state


def _counted(view: View) -> Answer:
    states: dict[str, float] = defaultdict(float)
    for gauge in view.fresh("in_flight_rollouts"):
        states[dict(gauge.labels).get("state", "generating")] += gauge.last
    return [Value(count, (("state", state),)) for state, count in sorted(states.items())] or Unknown(_HINT)


SIGNAL = Signal(
    name="in_flight_rollouts",
    title="In flight",
    unit="rollouts",
    actor="generator",
    help="Rollouts in flight by state: waiting_slot, booting, generating, in_tool, scoring, waiting_group, queued, "
    "gated, from records that are written during a rollout; otherwise the newest report of incomplete rollouts.",
    inputs=("in_flight_rollouts",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    records=True,
)
