"""Tokens that an engine generates per second: from its counter, or its reported rate where the counter jumps."""

from itertools import pairwise

from server.signals import engine_state
from server.signals.engine_state import Engine, engines
from server.signals.model import View

# A live counter grows between any two pages with requests; one that is updated at a request's end between few.
_LIVE_SHARE = 0.5


_TOKENS = "generator_tokens_total"


def rates(view: View) -> list[float]:
    """Tokens per second of the parts of the fleet: engines, and pages that count for all of their engines together."""
    known = [(engine, rate(engine, view)) for engine in engines(view)]
    found = [(engine.target, own) for engine, own in known if own is not None]
    told = {target for target, _ in found}
    shared = {id(one): one for engine, _ in known if engine.target not in told and (one := engine.shared.get(_TOKENS))}
    together = [engine_state.rate(gauge, view) for gauge in shared.values()]
    return [own for _, own in found] + [one for one in together if one is not None]


def rate(engine: Engine, view: View) -> float | None:
    """Tokens per second over five minutes; None below two pages.

    SGLang before 0.5.9 counts tokens when a request ends: none for minutes, then all. It also reports its throughput.
    """
    told = engine.series.get("generator_token_throughput")
    if told is not None and engine.state == "up" and _in_jumps(engine):
        return told.mean(view.now)
    return engine.rate(_TOKENS, view)


def _in_jumps(engine: Engine) -> bool:
    tokens, running = engine.series.get(_TOKENS), engine.series.get("generator_requests_running")
    if tokens is None or running is None:
        return tokens is None
    busy = {ts for ts, value in running.points if value > 0}
    grew = [new > old for (before, old), (ts, new) in pairwise(tokens.points) if before in busy and ts in busy]
    return bool(grew) and sum(grew) < _LIVE_SHARE * len(grew)
