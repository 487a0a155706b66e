"""Fake engines for `bench.scrape`: one process that serves a recorded page under any number of addresses.

    python -m bench._targets

Every address of 127.0.0.0/8 belongs to this machine, so each engine is a separate host behind one listening port, and
a scraper cannot reuse connections between engines, as in a cluster. Pages are laid out (and compressed for clients that
accept gzip) once, so that serving costs little compared with the scraper that is measured. Prints its port. GET
/stats?since=SECONDS gives what was served since then, /now its clock.
"""

import asyncio
import gzip
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

PAGES = sorted((Path(__file__).parent.parent / "tests/testdata/vllm/default").glob("metrics_*_load.prom"))
TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
# Scrape interval, s.
INTERVAL = 5.0
# A gap of one and a half intervals is a missed scrape, s.
GAP = 7.5


def answer(body: bytes, extra: bytes = b"") -> bytes:
    """A whole response with status 200."""
    return b"HTTP/1.1 200 OK\r\n" + TYPE + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(slots=True)
class Served:
    """Times of requests for each engine's page, and the number of other requests."""

    pages: dict[bytes, list[float]] = field(default_factory=lambda: defaultdict(list))
    other: list[float] = field(default_factory=list)

    def told(self, since: float) -> dict[str, object]:
        """Returns statistics since ``since``; a gap open at that time counts with its whole length."""
        now, pages, missed, longest = time.monotonic(), 0, 0, 0.0
        for times in self.pages.values():
            late = [at for at in times if at >= since]
            pages += len(late)
            edges = [*times[-len(late) - 1 :], now]
            gaps = [after - before for before, after in pairwise(edges) if after >= since]
            missed += sum(round(gap / INTERVAL) - 1 for gap in gaps if gap > GAP)
            longest = max([longest, *gaps])
        asked = sum(1 for at in self.other if at >= since)
        return {"engines": len(self.pages), "pages": pages, "missed": missed, "longest": longest, "other": asked}


class Engine(asyncio.Protocol):
    """One connection: answers with pages in turn, plain or compressed as requested."""

    def __init__(self, served: Served, plain: list[bytes], packed: list[bytes]) -> None:
        self._served, self._plain, self._packed, self._rest = served, plain, packed, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for request in requests:
            self._transport.write(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        path = request.split(b" ", 2)[1]
        if path == b"/metrics":
            head = request.lower()
            times = self._served.pages[head.partition(b"\r\nhost: ")[2].partition(b":")[0]]
            times.append(time.monotonic())
            zipped = b"gzip" in head.partition(b"accept-encoding:")[2].partition(b"\r\n")[0]
            pages = self._packed if zipped else self._plain
            return pages[len(times) % len(pages)]
        if path.startswith(b"/stats"):
            return answer(json.dumps(self._served.told(float(path.partition(b"=")[2] or 0))).encode())
        if path == b"/now":
            return answer(b"%r" % time.monotonic())
        self._served.other.append(time.monotonic())
        return ABSENT


async def serve() -> None:
    """Serves until killed."""
    bodies = [page.read_bytes() for page in PAGES]
    plain = [answer(body) for body in bodies]
    packed = [answer(gzip.compress(body, 6), b"Content-Encoding: gzip\r\n") for body in bodies]
    served, loop = Served(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(served, plain, packed), "0.0.0.0", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
