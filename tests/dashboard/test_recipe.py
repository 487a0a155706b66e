"""The recipe around `create()`, run as documented: servers that answer, refuse and are away."""

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboard.pages.sandboxes import data as sandboxes_data
from server.push.records import parse, records_of

CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
GUIDE = (Path(__file__).parents[2] / "docs/how-to/sandboxes.md").read_text("utf-8")


class Mine:
    """A provider's SDK, as far as the recipe goes."""

    error: BaseException | None = None

    @classmethod
    def create(cls) -> "Mine":
        if cls.error is not None:
            raise cls.error
        return cls()


class Failing(Mine):
    error = KeyboardInterrupt("stopped by hand")


class Server:
    """Answers every POST as told, and keeps (path, header, body); without an answer it talks no HTTP."""

    def __init__(self, status: int | None = 200) -> None:
        self.told: list[tuple[str, str | None, bytes]] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                told.append((self.path, self.headers["authorization"], body))
                if status is None:
                    self.wfile.write(b"220 smtp.example ESMTP\r\n")
                    return
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _records(body: bytes) -> list[Any]:
    found = parse(body, "sandboxes", 1.8e9)
    assert not found.refused
    return records_of("sandboxes", found.lines, 1.8e9)[0]


def test_recipe_is_the_one_of_the_documentation_and_short() -> None:
    (code,) = CODE.findall(GUIDE)
    assert sandboxes_data.recipe("my-run", "http://127.0.0.1:8050") == code
    _, around = code.split("\nbox = ")
    assert len(around.splitlines()) <= 10
    # The page's has a mark for the address, which the browser replaces.
    assert f'URL = "{sandboxes_data.HERE}/api/v1/runs/a%20b/sandboxes"' in sandboxes_data.recipe("a b")


def test_recipe_tells_of_a_life() -> None:
    """Run as it is shown, against a server that takes what ours does."""
    with Server() as server:
        code = sandboxes_data.recipe("my run/1", server.url)
        end = code.splitlines()[-1].partition("at its end: ")[2]
        exec(code.replace("HEADERS = {}", 'HEADERS = {"authorization": "Bearer t0ken"}') + end, {"Sandbox": Mine})
    assert {(path, header) for path, header, _ in server.told} == {
        ("/api/v1/runs/my%20run%2F1/sandboxes", "Bearer t0ken")
    }
    (first,), (ready,), (ended,) = (_records(body) for _, _, body in server.told)
    assert [one.state for one in (first, ready, ended)] == ["starting", "running", "terminated"]
    assert first.id == ready.id == ended.id and first.requested_at == ready.requested_at
    assert (ready.provider, ready.latency_source) == ("e2b", "client")
    assert ready.ready_at is not None and ended.ended_at is not None and ended.ended_at >= ready.ready_at


def test_recipe_tells_of_a_failure_and_lets_it_through() -> None:
    with Server() as server, pytest.raises(KeyboardInterrupt):
        exec(sandboxes_data.recipe("r", server.url), {"Sandbox": Failing})
    (first,), (failed,) = (_records(body) for _, _, body in server.told)
    assert (first.state, failed.state, failed.detail) == ("starting", "failed", "stopped by hand")
    assert first.id == failed.id


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "HTTP Error 401: Unauthorized"), (503, "HTTP Error 503"), (None, "220 smtp.example")],
)
def test_recipe_says_what_was_refused_and_goes_on(
    status: int | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"Sandbox": Mine}
    with Server(status) as server:
        exec(sandboxes_data.recipe("r", server.url), space)
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(said) == len(server.told) == 2 and all(line.startswith(f"rollscope: {words}") for line in said)
    assert isinstance(space["sandbox"], Mine)


@pytest.mark.parametrize("address", ["", "http://:x", "closed"])
def test_recipe_goes_on_where_nobody_listens(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that was closed again, and addresses that are none."""
    with Server() as server:
        pass
    space = {"Sandbox": Mine}
    exec(sandboxes_data.recipe("r", server.url if address == "closed" else address), space)
    assert isinstance(space["sandbox"], Mine)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all(line.startswith("rollscope: ") for line in said)
    # A failure of the SDK is still its own.
    with pytest.raises(KeyboardInterrupt):
        exec(sandboxes_data.recipe("r", server.url), {"Sandbox": Failing})
