"""The Rollouts page's query in addition to run and time: filters, order, and the open rollout.

It is part of the address: ``?state=infra_error&environment=swe&sort=response_tokens&rollout=ID&life=2``.
"""

from dataclasses import dataclass, field
from typing import cast, get_args
from urllib.parse import parse_qs

from server.query.types import RolloutFilter, Sort

CENSUS = ("waiting_slot", "booting", "generating", "in_tool", "scoring", "waiting_group", "queued", "gated")
"""Where a rollout is while it has not left, in the order it goes through them."""

WAITS = ("waiting_group", "queued")
"""Of these states: ended, and waiting for siblings or for the trainer. All others are in flight."""

EXITS = ("trained", "zero_advantage", "stale", "surplus", "aborted_oversample", "truncated_drop", "env_error",
         "infra_error", "ended")  # fmt: skip
"""How it left; ``ended``: it is over, and its use is not reported (an evaluation)."""

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
        after, more_groups: where the next page begins, of rollouts and of groups; "": no page is requested.
        incarnation: of the open rollout; None: its newest.
    """

    filter: RolloutFilter = field(default_factory=RolloutFilter)
    sort: Sort = "seconds"
    descending: bool = True
    outcomes: tuple[str, ...] = ()
    rollout: str = ""
    incarnation: int | None = None
    after: str = ""
    more_groups: str = ""

    @property
    def in_flight_only(self) -> bool:
        """Whether only rollouts in flight are requested, independent of when they last changed."""
        return bool(self.filter.states) and set(self.filter.states) <= set(CENSUS)


def parse(search: str) -> RolloutQuery:
    """Reads what it understands and ignores the rest: an address typed by hand must still open the page."""
    values = {key: values[-1][:_LONGEST] for key, values in parse_qs(search.lstrip("?")).items()}
    sort = values.get("sort", "")
    return RolloutQuery(
        _filter(values),
        cast(Sort, sort) if sort in get_args(Sort) else "seconds",
        values.get("order") != "asc",
        tuple(name for name in values.get("outcome", "").split(",") if name in OUTCOMES),
        values.get("rollout", ""),
        _incarnation(values.get("life", "")),
        values.get("after", ""),
        values.get("more_groups", ""),
    )


def _filter(values: dict[str, str]) -> RolloutFilter:
    return RolloutFilter(
        states=_states(values.get("state", "")),
        environment=values.get("environment", ""),
        purpose=purpose if (purpose := values.get("purpose", "")) in PURPOSES else "",
        group=values.get("group", ""),
        find=values.get("find", ""),
        mixed={"1": True, "0": False}.get(values.get("mixed", "")),
    )


def _states(text: str) -> tuple[str, ...]:
    """In a fixed order, so that equal queries share one cache entry."""
    names = set(text.split(","))
    return tuple(name for name in (*CENSUS, *EXITS) if name in names or (name in CENSUS and _IN_FLIGHT in names))


def _incarnation(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None
