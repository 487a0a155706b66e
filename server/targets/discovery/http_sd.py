"""Prometheus' `http_sd`: the list format of `file_sd`, by GET (prometheus.io/docs/prometheus/latest/http_sd)."""

from dataclasses import dataclass, field

import httpx

from server.targets.discovery.http_polling import HttpList, document
from server.targets.discovery.model import Base, DiscoveryError, Parsed, groups


@dataclass(slots=True)
class HttpSd(HttpList):
    """A list at a URL: HTTP 200, `application/json`, `[]` if there is no target."""

    base: Base = field(default_factory=Base)

    def name(self) -> str:
        """Name of the list in errors."""
        return "http_sd"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Requests the list; raises `DiscoveryError`."""
        headers = {
            **self.headers,
            "accept": "application/json",
            "x-prometheus-refresh-interval-seconds": f"{self.interval_seconds:g}",
        }
        answer = await document(client, self.url, headers, self.limits)
        if answer is None:
            raise DiscoveryError("HTTP 404 or 405")
        return groups(answer, Parsed(), self.base)
