"""Where an engine's page is, of a URL with a path: below it, or beside the API that clients are given."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from server.lib.errors import ConfigError
from server.lib.secret import Secret
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach, metrics_url
from tests.recorded import TESTDATA

PAGE = next((TESTDATA / "vllm" / "default").glob("metrics_*.prom")).read_bytes()
Serve = Callable[[dict[str, bytes | int]], list[str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A server with these pages (or statuses) by path, else 404; the list grows with what was asked."""
    plain = httpx.AsyncClient

    def start(pages: dict[str, bytes | int]) -> list[str]:
        asked = list[str]()

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            found = pages.get(request.url.path, 404)
            if isinstance(found, int):
                return httpx.Response(found)
            return httpx.Response(200, stream=httpx.ByteStream(found))

        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": transport}))
        return asked

    yield start


def attached(url: str) -> tuple[list[tuple[str, str]], list[str]]:
    """(URL, collector) of the targets, or what went wrong."""
    try:
        run = attach(RunSettings("run", (TargetSettings(url),)))
    except ConfigError as error:
        return [], [str(error)]
    return [(target.url, target.collector) for target in run.targets], []


@pytest.mark.parametrize(
    ("url", "pages", "found"),
    [
        ("http://engine:8000", {"/metrics": PAGE}, "http://engine:8000"),
        ("http://proxy/engine-0", {"/engine-0/metrics": PAGE, "/metrics": b"go_gc 1\n"}, "http://proxy/engine-0"),
        ("http://proxy/engine-0/", {"/engine-0/metrics": PAGE}, "http://proxy/engine-0/"),
        ("http://engine:8000/v1", {"/metrics": PAGE}, "http://engine:8000"),
        ("http://engine:8000/v1", {"/metrics": PAGE, "/v1/metrics": 401}, "http://engine:8000"),  # wants a key
        ("http://engine:8000/v1", {"/metrics": PAGE, "/v1/metrics": b"<html>"}, "http://engine:8000"),
        ("http://r:3000/engine_metrics", {"/engine_metrics": PAGE}, "http://r:3000/engine_metrics"),
    ],
)
def test_the_page_is_below_the_url_or_at_the_servers_root(
    serve: Serve, url: str, pages: dict[str, bytes | int], found: str
) -> None:
    serve(pages)
    assert attached(url) == ([(found, "vllm")], [])


def test_the_error_names_where_it_was_looked_for(serve: Serve) -> None:
    asked = serve({})
    targets, why = attached("http://engine:8000/v1")
    assert targets == [] and "(tried /v1/metrics and /metrics)" in why[0]
    assert {"/v1/metrics", "/metrics"} <= set(asked)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://gpu-node-1:8000", "http://gpu-node-1:8000: "),
        ("http://gpu-node-1.cluster/v1", "http://gpu-node-1.cluster: "),
        ("http://user:pa-ss@gpu-node-1:8000/x?key=1", "http://gpu-node-1:8000: "),
        ("http://[::1]:8000", "http://[::1]:8000: "),
    ],
)
def test_an_error_shows_the_host_as_written(serve: Serve, url: str, shown: str) -> None:
    serve({})
    _, why = attached(url)
    assert why[0].startswith(shown)


@pytest.mark.parametrize(
    ("urls", "targets", "notes"),
    [
        (
            ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000/", "http://127.0.0.1:8000/metrics"),
            ["http://127.0.0.1:8000"],
            (
                "http://localhost:8000 is the same engine as http://127.0.0.1:8000: read once",
                "http://[::1]:8000 is the same engine as http://127.0.0.1:8000: read once",
                "http://127.0.0.1:8000 is given more than once: read once",
            ),
        ),
        (
            ("http://gpu-1:8000/v1", "http://GPU-1:8000"),
            ["http://gpu-1:8000"],
            ("http://GPU-1:8000 is the same engine as http://gpu-1:8000: read once",),
        ),
        (("http://gpu-1:8000", "http://gpu-1:8001", "http://gpu-2:8000"), None, ()),
    ],
)
def test_an_engine_that_is_given_twice_is_read_once(
    serve: Serve, urls: tuple[str, ...], targets: list[str] | None, notes: tuple[str, ...]
) -> None:
    serve({"/metrics": PAGE})
    run = attach(RunSettings("run", tuple(map(TargetSettings, urls))))
    assert [target.url for target in run.targets] == (list(urls) if targets is None else targets)
    assert run.notes == notes


def test_two_accounts_of_one_provider_are_two_targets() -> None:
    url = "https://api.primeintellect.ai"
    accounts = [TargetSettings(url, collector="prime_sandboxes", bearer=Secret(key)) for key in ("key-1", "key-2")]
    run = attach(RunSettings("run", (*accounts, accounts[0])))
    assert [target.name for target in run.targets] == [
        "prime_sandboxes-api.primeintellect.ai", "prime_sandboxes-api.primeintellect.ai-2"
    ]  # fmt: skip


def test_a_page_that_is_named_is_the_only_one(serve: Serve) -> None:
    asked = serve({"/metrics": PAGE})
    targets, why = attached("http://r:3000/engine_metrics")
    assert targets == [] and "HTTP 404" in why[0]
    assert "/metrics" not in asked


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("http://e:1", "http://e:1/metrics"),
        ("http://e:1/", "http://e:1/metrics"),
        ("http://e:1/a/", "http://e:1/a/metrics"),
        ("http://e:1/prometheus/metrics", "http://e:1/prometheus/metrics"),
        ("http://e:1/federate?match[]=up", "http://e:1/federate?match[]=up"),
    ],
)
def test_the_page_of_a_url(url: str, page: str) -> None:
    assert metrics_url(url) == page
