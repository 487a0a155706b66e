"""Reads vllm-router, which prime-rl starts in front of its engines: worker health, requests in flight, retries, errors.

Its metrics are on a separate port (--prometheus-port, 29000; prime-rl: its server's port + 21000). The names
`vllm_router_...` are a fork of sglang-router's older ones. With prefill-decode pairs it has no requests in flight.
"""

import re

from collectors.engine_pages import pages, routers
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(rb"^vllm_router_\w+[{ ]", re.MULTILINE)

RULES = routers.page_rules(
    "vllm_router",
    routers.RouterNames(
        re.compile(r"vllm_router_(.+)"), routers.OLD, routers.OLD_HISTOGRAMS, routers.OLD_SUMMARIES, routers.OLD_USELESS
    ),
    "a metrics page without vllm_router_ series (the main port? --prometheus-port is 29000 by default)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `routers.read`."""
    return routers.read(body, state, limits, RULES)


COLLECTOR = Collector(
    name="vllm_router",
    actor="generator",
    reads="vllm-router over its metrics port",
    versions="0.1.17 by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
)
