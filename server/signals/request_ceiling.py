"""How many requests the engines can run at once, at the length that sequences have now. Pure."""

from dataclasses import dataclass

from server.signals.engine_state import engines
from server.signals.live_sequences import LOWEST_USAGE, LiveSequences, fleet, length
from server.signals.model import Unknown, View

HINT = "no engine reports running requests with the usage and the size of its KV cache: add its /metrics as a target"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Of the fleet.

    Attributes:
        requests: at most that many run at once. holds: what the caches alone would hold.
        length: mean tokens of a running sequence.
    """

    requests: float
    holds: float
    length: float


def ceiling(view: View) -> Ceiling | Unknown:
    """The ceiling of the engines that are awake and report the inputs; cached per view."""
    found: Ceiling | Unknown = view.once("ceiling", _ceiling)
    return found


def _ceiling(view: View) -> Ceiling | Unknown:
    known = [one for one in fleet(view) if one.capacity and one.usage is not None and one.tokens is not None]
    if not known:
        asleep = any(engine.state == "asleep" for engine in engines(view))
        return Unknown("every engine is asleep" if asleep else HINT)
    mix = length(one for one in known if one.judged)
    if mix is None:
        return Unknown(
            f"less than {LOWEST_USAGE:.0%} of the KV cache is in use, too little to estimate the length of sequences"
        )
    stated = view.fact("max_num_seqs")
    holds = [_holds(one, mix) for one in known]
    requests = sum(_limited(one, held, stated) for one, held in zip(known, holds, strict=True))
    return Ceiling(requests, sum(holds), mix)


def _holds(one: LiveSequences, others: float) -> float:
    """Requests that one cache holds.

    For a nearly empty engine the fleet's length is used, as its load will be alike.
    """
    own = length([one]) if one.judged else None
    return (one.capacity or 0.0) / (own or others)


def _limited(one: LiveSequences, holds: float, stated: float | None) -> float:
    """``stated``: the engines' limit by the run's configuration; the limit that an engine reports has precedence."""
    told = one.engine.series.get("generator_request_limit")
    limit = told.last if told is not None else stated
    return min(holds, limit) if limit is not None else holds
