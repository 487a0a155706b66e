"""Reads sglang-router and its successor, the model gateway: worker health, requests in flight, retries, errors.

Its metrics are on a separate port (--prometheus-port, 29000), with names `smg_...` (0.3 on) or `sgl_router_...`. Its
requests in flight are valid also for engines that have no metrics.

Not read: the engines' pages, which its main port merges under /engine_metrics (collectors sglang and vllm read those),
and the engines' metrics that it repeats with --engine-metrics, because they would count twice.
"""

import re

from collectors.engine_pages import pages, routers
from collectors.formats.exposition import Series
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(rb"^(?:smg|sgl_router)_\w+[{ ]", re.MULTILINE)
_OLD = re.compile(r"sgl_router_(.+)")

_GATEWAY = routers.RouterNames(
    re.compile(r"smg_(.+)"),
    routers.GATEWAY,
    routers.GATEWAY_HISTOGRAMS,
    routers.GATEWAY_SUMMARIES,
    routers.GATEWAY_USELESS,
    ("worker", "worker_id"),
)
_ROUTER = routers.RouterNames(_OLD, routers.OLD, routers.OLD_HISTOGRAMS, routers.OLD_SUMMARIES, routers.OLD_USELESS)

_MISMATCH = "a metrics page without smg_ or sgl_router_ series (the main port? --prometheus-port is 29000 by default)"
_NEW_RULES = routers.page_rules("sglang_router", _GATEWAY, _MISMATCH)
_OLD_RULES = routers.page_rules("sglang_router", _ROUTER, _MISMATCH)


def decide(series: Series, family: str, kind: str) -> pages.Decision:
    """Maps one series with an old or a new name."""
    return (_OLD_RULES if _OLD.fullmatch(family) else _NEW_RULES).decide(series, family, kind)


RULES = pages.PageRules(
    "sglang_router", decide, lambda series: _NEW_RULES.proves(series) or _OLD_RULES.proves(series), _MISMATCH
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `routers.read`."""
    return routers.read(body, state, limits, RULES)


COLLECTOR = Collector(
    name="sglang_router",
    actor="generator",
    reads="sglang-router and the SMG model gateway over their metrics port",
    versions="sglang-router 0.1.9 and 0.3.2, gateway 73da68ca (2026-08) by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
)
