"""Targets that are asked for: http_sd and routers, over real HTTP."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Limits
from server.targets.lists import HttpSd, RouterWorkers
from server.targets.lists import parse_workers as parse
from server.targets.model import Found, Listing
from server.targets.polling import HttpList
from tests.targets.serving import Answers, serving

NOW = 1_795_300_870.0
JSON = "application/json"
LIST = b'[{"targets": ["h:1"], "labels": {"__metrics_path__": "/m", "zone": "b"}}]'
FOUND = Found("http://h:1/m", (("zone", "b"),))


@pytest.fixture
def answers() -> Iterator[Answers]:
    with serving() as found:
        yield found


def ask(provider: HttpList, *times: float) -> list[Listing]:
    async def all_of_them() -> list[Listing]:
        try:
            return [await provider.targets(NOW + at) for at in times]
        finally:
            await provider.close()

    found = asyncio.run(all_of_them())
    provider._client = None
    return found


def test_a_list_over_http_is_asked_for_as_often_as_agreed(answers: Answers) -> None:
    answers.paths["/sd"] = (200, "application/json; charset=utf-8", LIST)
    provider = HttpSd(f"{answers.url}/sd", interval_seconds=30)
    assert ask(provider, 0, 5, 29, 30) == [Listing((FOUND,), at == 0, "") for at in (0, 5, 29, 30)]
    assert [path for path, _ in answers.asked] == ["/sd", "/sd"]
    assert answers.asked[0][1]["x-prometheus-refresh-interval-seconds"] == "30"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, JSON, LIST), "HTTP 500"),
        ((302, JSON, LIST), "HTTP 302: redirects are not followed; configure the final URL"),
        ((404, JSON, LIST), "HTTP 404 or 405"),
        ((200, "text/html", LIST), "the answer is not application/json"),
        ((200, JSON, LIST[:-5]), "invalid or incomplete JSON: line 1"),
        ((200, JSON, b'{"targets": []}'), "it must be a list of at most 10000 groups {targets, labels}"),
        ((200, JSON, b" " * 500 + LIST), "the answer is larger than 400 bytes"),
    ],
)
def test_an_error_keeps_the_last_list_and_is_told(answers: Answers, answer: tuple[int, str, bytes], why: str) -> None:
    answers.paths["/sd"] = (200, JSON, LIST)
    provider = HttpSd(f"{answers.url}/sd", limits=Limits(body_bytes=400))
    ask(provider, 0)
    answers.paths["/sd"] = answer
    error = f"http_sd: {why}; its last 1 targets are kept"
    assert ask(provider, 60, 61) == [Listing((FOUND,), False, error)] * 2
    answers.paths["/sd"] = (200, JSON, b"[]")
    assert ask(provider, 120) == [Listing((), True, "")]


def test_nobody_there_and_an_address_that_is_refused() -> None:
    with serving() as gone:
        pass
    assert ask(HttpSd(gone.url), 0) == [
        Listing((), False, "http_sd: connection refused: nothing listens at this host and port")
    ]
    (refused,) = ask(HttpSd("http://169.254.169.254/latest"), 0)
    assert refused.error.startswith("http_sd: its address is a link-local")


WORKERS: dict[str, Any] = {
    "workers": [
        {"id": "1", "url": "http://192.0.2.1:3001", "worker_type": "regular", "is_healthy": True},
        {"id": "2", "url": "http://192.0.2.2:3001/", "worker_type": "prefill", "is_healthy": False},
        {"id": "3", "url": "http://192.0.2.3:3001@0", "worker_type": "regular"},
        {"id": "4", "url": "http://192.0.2.3:3001@1", "worker_type": "regular"},
        {"id": "5", "url": "grpc://192.0.2.4:3001"},
        {"id": "6", "url": "http://me:secret@192.0.2.5:3001"},
    ],
    "total": 6,
}


def test_the_workers_of_a_router() -> None:
    parsed = parse(WORKERS)
    assert parsed.found == [
        Found("http://192.0.2.1:3001/metrics"),
        Found("http://192.0.2.2:3001/metrics", (("worker_type", "prefill"),)),
        # Two ranks of one engine: one page.
        Found("http://192.0.2.3:3001/metrics"),
    ]
    assert parsed.problems == [
        "workers[4] has only gRPC, so it has no metrics page", "workers[5].url contains a password",
    ]  # fmt: skip


def test_an_older_router_is_asked_by_its_older_name(answers: Answers) -> None:
    answers.paths["/list_workers"] = (200, JSON, b'{"urls": ["http://192.0.2.1:3001"]}')
    provider = RouterWorkers(f"{answers.url}/")
    assert ask(provider, 0) == [Listing((Found("http://192.0.2.1:3001/metrics"),), True, "")]
    assert [path for path, _ in answers.asked] == ["/workers", "/list_workers"]
    answers.paths["/workers"] = (200, JSON, json.dumps(WORKERS).encode())
    (listing,) = ask(provider, 15)
    assert (len(listing.found), listing.changed) == (3, True)
    assert listing.left_out.startswith("the router's workers: workers[4] has only gRPC")


def test_what_is_no_router_says_so(answers: Answers) -> None:
    (listing,) = ask(RouterWorkers(answers.url), 0)
    assert listing.error == "the router's workers: the router has neither /workers nor /list_workers"
    answers.paths["/workers"] = (200, JSON, b'{"workers": [{"id": 1}]}')
    assert ask(RouterWorkers(answers.url), 0)[0].error == "the router's workers: workers[0].url must be a URL"
    answers.paths["/workers"] = (200, JSON, b"[]")
    assert (
        ask(RouterWorkers(answers.url), 0)[0].error == "the router's workers: the answer holds neither workers nor urls"
    )
