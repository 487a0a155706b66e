"""A real HTTP server whose answers are set by hand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers:
    """``paths``: path -> (status, content type, body); ``asked``: (path, headers) of every request."""

    def __init__(self) -> None:
        self.paths: dict[str, tuple[int, str, bytes]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = ""


@contextmanager
def serving() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, kind, body = answers.paths.get(self.path, (404, "application/json", b"{}"))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if status == 302:
                self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()
            thread.join()
