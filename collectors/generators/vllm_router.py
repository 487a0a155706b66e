"""vllm-router, which prime-rl starts before its engines: workers' health, requests in flight, retries, errors.

Its metrics are on a port of their own (--prometheus-port, 29000; prime-rl: its server's port + 21000). In names
`vllm_router_...`: a fork of sglang-router's older ones. With prefill-decode pairs it has no requests in flight.
"""

import re

from collectors.engine_pages import plain, routers
from collectors.engine_pages import router_names as names
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(rb"^vllm_router_\w+[{ ]", re.MULTILINE)

WORDS = routers.vocabulary(
    "vllm_router",
    routers.RouterNames(
        re.compile(r"vllm_router_(.+)"), names.OLD, names.OLD_HISTOGRAMS, names.OLD_SUMMARIES, names.OLD_USELESS
    ),
    "a metrics page without vllm_router_ series (the main port? --prometheus-port is 29000 by default)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `routers.read`."""
    return routers.read(body, state, limits, WORDS)


COLLECTOR = Collector(
    name="vllm_router",
    actor="generator",
    reads="vllm-router over its metrics port",
    versions="0.1.17 by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
)
