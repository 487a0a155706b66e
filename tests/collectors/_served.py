"""A real HTTP server on a loopback port that answers some paths with JSON and remembers what it was asked."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from collectors.model import Collector, Limits, Reading


class Served:
    """``pages``: path -> what it answers; the rest is 404. ``asked``: (method, path) of every request, in order."""

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages = dict(pages)
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    async def poll(self, collector: Collector) -> Reading:
        """As the scraper asks."""
        assert collector.poll is not None
        async with httpx.AsyncClient(base_url=self.url) as client:
            return await collector.poll(client, {}, Limits())


@contextmanager
def served(pages: Mapping[str, Any]) -> Iterator[Served]:
    """A server for the time of the block."""
    site = Served(pages)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(site: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _do(self) -> None:
            site.asked.append((self.command, self.path))
            found = self.path in site.pages
            body = json.dumps(site.pages[self.path] if found else {"detail": "Not Found"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _do

    return Handler
