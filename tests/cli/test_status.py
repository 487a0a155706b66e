"""`rollscope status --url URL`: what it says where no Rollscope server gives it a status."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.main import main


@contextmanager
def answering(code: int, kind: str, body: bytes) -> Iterator[str]:
    """A server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


FOREIGN = "a server answers that is not Rollscope"


@pytest.mark.parametrize(
    ("token", "code", "kind", "body", "why"),
    [
        (
            "",
            401,
            "text/plain",
            b"token missing",
            "status: access denied (HTTP 401): ROLLSCOPE_TOKEN is not set, and this",
        ),
        (
            "wrong-token",
            401,
            "text/plain",
            b"no",
            "status: access denied (HTTP 401): ROLLSCOPE_TOKEN is not this server's token",
        ),
        ("", 200, "text/html", b"<html>hi</html>", f"--url URL: {FOREIGN} (HTTP 200, text/html)"),
        ("", 404, "application/json", b'{"detail": "Not Found"}', f"--url URL: {FOREIGN} (it has no list of runs"),
        ("", 200, "application/json", b'{"hello": 1}', f"--url URL: {FOREIGN} (it has no list of runs"),
        ("", 500, "application/json", b'{"detail": "the store is away"}', "status: the store is away"),
        ("", 200, "application/json", b"[]", "status: there is no run yet"),
    ],
)
def test_another_answer_than_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token: str, code: int, kind: str, body: bytes,
    why: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("ROLLSCOPE_TOKEN", token) if token else monkeypatch.delenv("ROLLSCOPE_TOKEN", raising=False)
    with answering(code, kind, body) as url:
        assert main(["status", "--url", url]) == 2
        assert capsys.readouterr().err.startswith(f"rollscope: {why.replace('URL:', f'{url}:')}")


def test_no_server_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "http://user:secret@gpu-node-1.invalid:8050/x"]) == 2
    told = capsys.readouterr().err
    assert told == "rollscope: --url http://gpu-node-1.invalid:8050: host name not found (DNS)\n"
