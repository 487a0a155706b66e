"""Engines behind a router: sglang-router and its forks (`GET /workers`, 0.3; `GET /list_workers`, 0.1), slime's router.

A router that does not answer keeps its last engines; engines that do not answer report it themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from collectors.model import Labels
from server.targets.discovery.http_polling import HttpList, document
from server.targets.discovery.model import DiscoveryError, Parsed, servers

# /get_loads has more information but requires admin rights.
PATHS = ("/workers", "/list_workers")


@dataclass(slots=True)
class RouterWorkers(HttpList):
    """``url``: the router's own URL."""

    interval_seconds: float = 15.0

    def name(self) -> str:
        """Name of the list in errors."""
        return "the router's workers"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Requests the current engines; raises `DiscoveryError`."""
        for path in PATHS:
            headers = {**self.headers, "accept": "application/json"}
            found = await document(client, self.url.rstrip("/") + path, headers, self.limits)
            if found is not None:
                return parse(found)
        raise DiscoveryError(f"the router has neither {' nor '.join(PATHS)}")


def parse(answer: Any) -> Parsed:
    """Parses either answer: `{"workers": [{"url", ...}]}` or `{"urls": [...]}`.

    Raises:
        DiscoveryError: neither.
    """
    parsed = Parsed()
    rows = answer.get("workers", answer.get("urls")) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise DiscoveryError("the answer holds neither workers nor urls")
    return servers(_urls(rows, parsed), parsed)


def _urls(rows: list[Any], parsed: Parsed) -> Iterator[tuple[str, Any, Labels]]:
    for number, row in enumerate(rows):
        url = row.get("url") if isinstance(row, dict) else row
        kind = row.get("worker_type") if isinstance(row, dict) else None
        if isinstance(url, str) and url.startswith("grpc://"):
            parsed.leave_out(f"workers[{number}] has only gRPC, so it has no metrics page")
            continue
        # Only prefill and decode engines get a label; "regular" ones need none.
        labelled = isinstance(kind, str) and kind in ("prefill", "decode")
        yield f"workers[{number}].url", url, (("worker_type", str(kind)),) if labelled else ()
