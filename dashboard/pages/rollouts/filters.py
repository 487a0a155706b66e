"""What the Rollouts page is asked to show beside run and time: filters, order, and the rollout that is open.

All of it lives in the address: ``?state=infra_error&environment=swe&sort=response_tokens&rollout=ID&life=2``.
"""

from dataclasses import dataclass, field
from typing import cast, get_args
from urllib.parse import parse_qs

from server.query.rollouts.types import RolloutFilter, Sort

CENSUS = ("waiting_slot", "booting", "generating", "in_tool", "scoring", "waiting_group", "queued", "gated")
"""Where a rollout is while it has not left, in the order it goes through them."""

WAITS = ("waiting_group", "queued")
"""Of these states: ended, and waiting for siblings or for the trainer. All others are in flight."""

EXITS = ("trained", "zero_advantage", "stale", "surplus", "aborted_oversample", "truncated_drop", "env_error",
         "infra_error", "ended")  # fmt: skip
"""How it left; ``ended``: it is over, and nobody tells how it was used (an evaluation)."""

OUTCOMES = ("mixed", "all_solved", "none_solved", "equal_unknown", "too_few_valid", "open")
PURPOSES = ("train", "eval", "judge")
PARAMETERS = (
    "state",
    "environment",
    "purpose",
    "mixed",
    "find",
    "group",
    "sort",
    "order",
    "outcome",
    "rollout",
    "life",
)
"""Of the address, in this order."""

_IN_FLIGHT = "in_flight"
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """A parsed address.

    Attributes:
        after, more_groups: where the next page begins, of rollouts and of groups; "": no page is asked for.
        life: of the rollout that is open; None: its newest.
    """

    wanted: RolloutFilter = field(default_factory=RolloutFilter)
    sort: Sort = "seconds"
    descending: bool = True
    outcomes: tuple[str, ...] = ()
    rollout: str = ""
    life: int | None = None
    after: str = ""
    more_groups: str = ""

    @property
    def in_flight_only(self) -> bool:
        """Only such as have not left: then it does not matter when they last moved."""
        return bool(self.wanted.states) and set(self.wanted.states) <= set(CENSUS)


def parse(search: str) -> RolloutQuery:
    """Reads what it understands and ignores the rest: an address typed by hand must still open the page."""
    told = {key: values[-1][:_LONGEST] for key, values in parse_qs(search.lstrip("?")).items()}
    sort = told.get("sort", "")
    return RolloutQuery(
        _filter(told),
        cast(Sort, sort) if sort in get_args(Sort) else "seconds",
        told.get("order") != "asc",
        tuple(name for name in told.get("outcome", "").split(",") if name in OUTCOMES),
        told.get("rollout", ""),
        _life(told.get("life", "")),
        told.get("after", ""),
        told.get("more_groups", ""),
    )


def _filter(told: dict[str, str]) -> RolloutFilter:
    return RolloutFilter(
        states=_states(told.get("state", "")),
        environment=told.get("environment", ""),
        purpose=purpose if (purpose := told.get("purpose", "")) in PURPOSES else "",
        group=told.get("group", ""),
        find=told.get("find", ""),
        mixed={"1": True, "0": False}.get(told.get("mixed", "")),
    )


def _states(text: str) -> tuple[str, ...]:
    """In one order, so that the same question has one answer in memory."""
    names = set(text.split(","))
    return tuple(name for name in (*CENSUS, *EXITS) if name in names or (name in CENSUS and _IN_FLIGHT in names))


def _life(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None
