"""A Prometheus-compatible store as its HTTP API answers, with whatever rows a test gives it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import httpx

from collectors.generators import prometheus
from collectors.model import Limits, Reading

NOW = 1_795_000_000.0
Row = tuple[dict[str, str], float]


def engine(at: float, running: float = 3.0, **target: str) -> tuple[Row, Row]:
    """When an engine was scraped, and its one gauge."""
    own = {"instance": "e0:8000", "job": "vllm"} | target
    gauge = {"__name__": "vllm:num_requests_running", "engine": "0", "model_name": "m"}
    return (own, at), (own | gauge, running)


@dataclass
class Store:
    """A store: rows by what is asked for, and what goes around them."""

    seen: list[Row] = field(default_factory=list)
    values: list[Row] = field(default_factory=list)
    up: list[Row] = field(default_factory=list)
    servers: list[Row] = field(default_factory=list)
    histograms: list[Row] | int = field(default_factory=list)
    more: Mapping[str, object] = field(default_factory=dict)
    at: float = NOW
    raw: bytes | None = None
    status: int = 200
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    state: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, *engines: tuple[Row, Row], **more: object) -> "Store":
        return cls([seen for seen, _ in engines], [row for _, row in engines], **more)  # type: ignore[arg-type]

    async def __call__(self, scope, receive, send) -> None:
        message = await receive()
        form = {name: found[0] for name, found in parse_qs(message["body"].decode()).items()}
        self.headers = {name.decode(): text.decode() for name, text in scope["headers"]}
        kind = self._kind(form["query"])
        self.asked.append((kind, form))
        rows = getattr(self, kind)
        status = rows if isinstance(rows, int) else self.status
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": self._body([] if isinstance(rows, int) else rows)})

    @staticmethod
    def _kind(query: str) -> str:
        if "timestamp(" in query:
            return "seen"
        if "(up{" in query:
            return "up"
        return "servers" if "handler=~" in query else "histograms" if "_(?:bucket|sum)" in query else "values"

    def _body(self, rows: list[Row]) -> bytes:
        if self.raw is not None:
            return self.raw
        result = [{"metric": labels, "value": [self.at, str(number)]} for labels, number in rows]
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}, **self.more}
        return json.dumps(answer).encode()

    def poll(self, now: float = NOW, limits: Limits | None = None, **options: str) -> Reading:
        self.state |= {"now": now, "options": options}

        async def run() -> Reading:
            transport = httpx.ASGITransport(self)
            async with httpx.AsyncClient(base_url="http://sekret-store/prometheus", transport=transport) as client:
                return await prometheus.poll(client, self.state, limits or Limits())

        return asyncio.run(run())
