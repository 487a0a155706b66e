"""sglang-router and the model gateway it became: workers' health, requests in flight per worker, retries, errors.

Its metrics are on a port of their own (--prometheus-port, 29000), in names `smg_...` (0.3 on) or `sgl_router_...`. What
it says of requests in flight holds for engines that have no metrics of their own.

Does not know: the engines' pages, which its main port merges under /engine_metrics (collectors sglang and vllm read
those); what it repeats of them with --engine-metrics, which would count twice.
"""

import re

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages import plain, routers
from collectors.engine_pages import router_names as names
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(rb"^(?:smg|sgl_router)_\w+[{ ]", re.MULTILINE)
_OLD = re.compile(r"sgl_router_(.+)")

_GATEWAY = routers.RouterNames(
    re.compile(r"smg_(.+)"),
    names.GATEWAY,
    names.GATEWAY_HISTOGRAMS,
    names.GATEWAY_SUMMARIES,
    names.GATEWAY_USELESS,
    ("worker", "worker_id"),
)
_ROUTER = routers.RouterNames(_OLD, names.OLD, names.OLD_HISTOGRAMS, names.OLD_SUMMARIES, names.OLD_USELESS)

_STRANGER = "a metrics page without smg_ or sgl_router_ series (the main port? --prometheus-port is 29000 by default)"
_NEW_WORDS = routers.vocabulary("sglang_router", _GATEWAY, _STRANGER)
_OLD_WORDS = routers.vocabulary("sglang_router", _ROUTER, _STRANGER)


def decide(series: Series, family: str, kind: str) -> engine_pages_pages.Decision:
    """What to do with one series, of either line of names."""
    return (_OLD_WORDS if _OLD.fullmatch(family) else _NEW_WORDS).decide(series, family, kind)


WORDS = engine_pages_pages.Vocabulary(
    "sglang_router", decide, lambda series: _NEW_WORDS.proves(series) or _OLD_WORDS.proves(series), _STRANGER
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `routers.read`."""
    return routers.read(body, state, limits, WORDS)


COLLECTOR = Collector(
    name="sglang_router",
    actor="generator",
    reads="sglang-router and the SMG model gateway over their metrics port",
    versions="sglang-router 0.1.9 and 0.3.2, gateway 73da68ca (2026-08) by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
)
