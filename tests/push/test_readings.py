"""Readings of another machine: the body, the door with its numbers, and what the run becomes. Both databases."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from collectors.model import Event, Histogram, Reading, Sample, Sandbox, ScrapeError
from server.api.app import close_api, create_api
from server.api.forwarding import add_readings
from server.api.gate import Gate
from server.api.push import add_pushes
from server.lib.clock import ScaledClock
from server.push import inbox as readings
from server.push.inbox import Outcome
from server.query import Reader
from server.signals.model import TargetState
from server.store import Store
from server.store import inbox as store_inbox
from server.store.types import Batch
from tests.push.test_pushed_targets import T0

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

QUERY = {
    "run": "run", "target": "out", "kind": "prime_rl", "actor": "trainer", "interval": "5", "agent": "a" * 16,
    "seq": "1",
}  # fmt: skip
WHOLE = Reading(
    samples=(
        Sample("trainer_step_seconds", 30.5, (("a", "b"),), T0, 3, "trainer"),
        Sample("generator_requests_running", 7.0),
    ),
    histograms=(Histogram("time_to_first_token_seconds", (0.5, 1.0), (1.0, 2.0, 3.0), 4.5, (), T0),),
    events=(Event("checkpoint", "checkpoint-3", T0, "saved"),),
    facts={"framework": "prime_rl", "mode": "async", "group_size": 16.0},
    unmapped={"what/else": 2}, cursor={}, dropped=1, why_dropped="a broken line", samples_scraped=9,
    sandboxes=(Sandbox("modal", "sb-1", "failed", requested_at=T0, image_cached=False, cause="oom"),),
    listed=("modal",), partial="page 2 of 9", gaps=("wallet: HTTP 403",), origins={"reward": "r/mean"},
    reader="metrics.jsonl",
)  # fmt: skip


def step(number: int, tokens: float = 1000.0, at: float | None = None, **facts: str) -> Reading:
    values = {"trainer_step_seconds": 30.0, "trainer_wait_seconds": 12.0, "trained_tokens": tokens}
    ts = T0 + (30.0 * number if at is None else at)
    samples = tuple(Sample(name, one, ts=ts, step=number, axis="trainer") for name, one in values.items())
    return Reading(samples=samples, facts={"framework": "prime_rl", "mode": "async", **facts}, cursor={"row": number})


class Web:
    """The door over a store, without a socket; the clock is set by hand."""

    def __init__(self, store: Store, token: str | None = None) -> None:
        self.store, self.clock = store, ScaledClock(T0)
        api: FastAPI = create_api(Reader(store, self.clock), version="1", ready=lambda: None)
        add_pushes(api, store, self.clock, lambda run: run != "full")
        add_readings(api, store, self.clock, lambda run: run != "full")
        close_api(api)
        self.app = Gate(api, hosts=["test"], token=token)

    def post(self, body: bytes, path: str = "/api/v1/readings", headers: Any = None, **query: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
                return await client.post(path, params=query, content=body, headers=headers)

        return asyncio.run(ask())

    def send(self, reading: Reading | ScrapeError, seq: int, at: float = 0.0, **query: Any) -> list[dict[str, Any]]:
        """As the agent does: one body for each part, in order."""
        error = reading if isinstance(reading, ScrapeError) else None
        outcome = Outcome(T0 + at, 0.25, None if error else reading, error)  # type: ignore[arg-type]
        found = []
        for body in readings.bodies(outcome):
            packed = gzip.compress(body)
            answer = self.post(packed, headers={"content-encoding": "gzip"}, **{**QUERY, "seq": seq, **query})
            assert answer.status_code == 200, answer.text
            found.append(answer.json())
        return found


@pytest.fixture
def web(store: Store) -> Iterator[Web]:
    yield Web(store)


def waiting(web: Web) -> int:
    return len(web.store.pushes.waiting("run", 1000))


# ---- the body


def test_a_reading_comes_back_whole() -> None:
    (body,) = readings.bodies(Outcome(T0, 0.25, WHOLE))
    assert readings.read(body) == Outcome(T0, 0.25, WHOLE)
    page = structs.replace(WHOLE, cursor=None)
    assert readings.read(readings.bodies(Outcome(T0, 0.25, page))[0]).reading == page


def test_a_long_reading_is_cut_between_steps_and_ends_last() -> None:
    """12,003 values in steps of 3: cut at the first step that begins after 5,000."""
    rows = [one for number in range(1, 4002) for one in step(number).samples]
    whole = Reading(samples=tuple(rows), facts={"mode": "async", "lifecycle": "finished"}, cursor={"x": 1}, dropped=2)
    parts = [readings.read(body).reading for body in readings.bodies(Outcome(T0, 0.1, whole))]
    assert [len(one.samples) for one in parts if one] == [5001, 5001, 2001]
    assert [one.more for one in parts if one] == [True, True, False]
    assert [one.facts.get("lifecycle") for one in parts if one] == [None, None, "finished"]
    assert [one.dropped for one in parts if one] == [0, 0, 2]
    assert [sample for one in parts if one for sample in one.samples] == rows


def test_sandboxes_of_several_bodies_end_nobody() -> None:
    boxes = tuple(Sandbox("modal", str(number), "running") for number in range(10_001))
    parts = readings.bodies(Outcome(T0, 0.1, Reading(sandboxes=boxes, listed=("modal",))))
    found = [readings.read(body).reading for body in parts]
    assert [(len(one.sandboxes), one.listed) for one in found if one] == [(10_000, ()), (1, ())]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"samples": [{"metric": "nope", "value": 1}]}, "no metric is named nope"),
        ({"samples": [{"metric": "reward_mean", "value": True}]}, "value must be a finite number"),
        ({"samples": [{"metric": "reward_mean", "value": 1, "step": 1.5}]}, "step must be a whole number"),
        ({"samples": [17]}, "not a JSON object"),
        (
            {"histograms": [{"metric": "time_to_first_token_seconds", "edges": [1], "counts": [1], "total": 1}]},
            "ascending edges",
        ),
        ({"events": [{"kind": "party", "key": "k"}]}, "kind must be one of weights_published"),
        ({"facts": {"colour": "red"}}, "no fact is named colour"),
        ({"facts": {"lifecycle": "great"}}, "lifecycle must be one of"),
        (
            {"sandboxes": [{"provider": "modal", "id": "a", "state": "gone"}], "listed": ["modal"]},
            "state must be one of",
        ),
    ],
)
def test_one_odd_record_is_dropped_and_counted(change: dict[str, Any], why: str) -> None:
    found = readings.read(json.dumps({"version": 2, "at": T0, "seconds": 0.1, "reading": change}).encode()).reading
    assert found is not None and found.dropped == 1 and why in found.why_dropped and found.listed == ()
    assert not (found.samples or found.histograms or found.events or found.facts or found.sandboxes)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[", b"[]", b"{}", b'{"version":1}', b'{"version":2}', b'{"version":2,"at":"now","seconds":0}',
        b'{"version":2,"at":1,"seconds":0,"reading":[]}', b'{"version":2,"at":1,"seconds":0,"error":{"kind":"x"}}',
        b'{"version":2,"at":1,"seconds":0,"reading":{"samples":{}}}',
        b'{"version":2,"at":NaN,"seconds":0,"reading":{}}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_reading_is_refused(body: bytes, web: Web) -> None:
    with pytest.raises(ValueError, match=r"the body|must be|not a|is missing"):
        readings.read(body)
    assert web.post(body, **QUERY).status_code == 400 and web.store.runs.all() == []


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
KEYS = ("samples", "histograms", "events", "sandboxes", "facts", "unmapped", "gaps", "listed", "origins", "dropped")


@given(st.dictionaries(st.sampled_from(KEYS), JSON), JSON)
def test_any_json_is_read_or_refused(reading: dict[str, Any], seconds: Any) -> None:
    body = json.dumps({"version": 2, "at": T0, "seconds": seconds, "reading": reading}).encode()
    try:
        found = readings.read(body)
    except ValueError:
        return
    assert found.reading is not None and readings.read(readings.bodies(found)[0]).reading is not None


@settings(max_examples=15)
@given(st.lists(st.integers(0, 4000), max_size=6))
def test_pieces_lose_nothing(widths: list[int]) -> None:
    rows = [
        Sample("reward_mean", 1.0, step=at, axis="trainer") for at, width in enumerate(widths) for _ in range(width)
    ]
    parts = readings.bodies(Outcome(T0, 0.1, Reading(samples=tuple(rows))))
    found = [one.reading.samples for one in map(readings.read, parts) if one.reading is not None]
    assert [sample for part in found for sample in part] == rows
    edges = [(a[-1].step, b[0].step) for a, b in pairwise(found)]
    assert all(last != first for last, first in edges)


# ---- the door


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": ""}, "the run is missing"),
        ({"run": "a/b"}, "run name"),
        ({"target": ""}, "target"),
        ({"target": "pushed"}, "and not 'pushed'"),
        ({"kind": "push"}, "kind 'push' is unknown"),
        ({"actor": "judge"}, "actor 'judge' is unknown"),
        ({"interval": "1"}, "interval must be"),
        ({"agent": "short"}, "agent must be"),
        ({"seq": "0"}, "seq must be a whole number from 1 on"),
        ({"seq": "9" * 19}, "seq must be"),
        ({"behind": "-1"}, "behind must be"),
        ({"sent": "nan"}, "sent must be"),
        ({"step": "1"}, "unknown parameter 'step'"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_why(web: Web, change: dict[str, str], said: str) -> None:
    (body,) = readings.bodies(Outcome(T0, 0.1, step(1)))
    answer = web.post(body, **{**QUERY, **change})
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert web.store.runs.all() == []


def test_a_time_that_cannot_be_is_refused(web: Web) -> None:
    (body,) = readings.bodies(Outcome(T0 + 2 * 86_400, 0.1, step(1)))
    assert web.post(body, **QUERY).status_code == 400


def test_limits_come_first(web: Web) -> None:
    bomb = gzip.compress(b" " * ((16 << 20) + 1))
    assert web.post(bomb, headers={"content-encoding": "gzip"}, **QUERY).status_code == 413
    assert web.post(b" " * ((16 << 20) + 1), **QUERY).status_code == 413
    rows = [{"metric": "reward_mean", "value": 1}] * 50_001
    many = json.dumps({"version": 2, "at": T0, "seconds": 0, "reading": {"samples": rows}}).encode()
    assert web.post(many, **QUERY).status_code == 400


def test_a_token_is_asked_for(store: Store) -> None:
    web = Web(store, token="long enough")
    (body,) = readings.bodies(Outcome(T0, 0.1, step(1)))
    assert web.post(body, **QUERY).status_code == 401
    assert web.post(body, headers={"authorization": "Bearer long enough"}, **QUERY).status_code == 200


def test_a_repeat_is_acknowledged_and_not_kept(web: Web) -> None:
    assert web.send(step(1), 1) == [{"seq": 1, "repeated": False}]
    assert web.send(step(1), 1) == [{"seq": 1, "repeated": True}]
    assert web.send(step(2), 5) == [{"seq": 5, "repeated": False}]
    assert web.send(step(1), 4) == [{"seq": 4, "repeated": True}]
    # Another target of the same spool, and of another spool, count for themselves.
    assert web.send(step(1), 1, target="other") == [{"seq": 1, "repeated": False}]
    assert waiting(web) == 3


def test_two_at_once_are_one(web: Web) -> None:
    """The same reading on eight threads: whatever the database does, one of them is the first."""
    (body,) = readings.bodies(Outcome(T0, 0.1, step(1)))

    async def all_at_once() -> list[bool]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(web.app), base_url="http://test") as client:
            asked = [client.post("/api/v1/readings", params=QUERY, content=body) for _ in range(8)]
            return [answer.json()["repeated"] for answer in await asyncio.gather(*asked)]

    assert sorted(asyncio.run(all_at_once())) == [False] + [True] * 7
    assert waiting(web) == 1


def test_a_first_reading_kept_while_another_is_checked_is_no_stranger(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slow machine does: the same reading is kept between the two looks of the check."""
    (body,) = readings.bodies(Outcome(T0, 0.1, step(1)))
    looks = [web.store.pushes.forwarders, web.store.pushes.pushers]

    def then_keep(look: Any) -> Any:
        def looked(run: str) -> Any:
            found = look(run)
            monkeypatch.undo()
            assert web.send(step(1), 1) == [{"seq": 1, "repeated": False}]
            return found

        return looked

    for look in looks:
        monkeypatch.setattr(web.store.pushes, look.__name__, then_keep(look))
    assert web.post(body, **QUERY).json() == {"seq": 1, "repeated": True}


def test_a_full_inbox_takes_no_number(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_inbox, "INBOX_PUSHES", 1)
    web.send(step(1), 1)
    (body,) = readings.bodies(Outcome(T0, 0.1, step(2)))
    answer = web.post(body, **{**QUERY, "seq": "2"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
    monkeypatch.setattr(store_inbox, "INBOX_PUSHES", 2)
    assert web.send(step(2), 2) == [{"seq": 2, "repeated": False}]
    assert web.post(body, **{**QUERY, "run": "full"}).status_code == 429


def test_a_target_has_one_teller(web: Web) -> None:
    row = TargetState("local", "vllm", "generator", True, T0)
    web.store.write(Batch("run", targets=[row]))
    (body,) = readings.bodies(Outcome(T0, 0.1, step(1)))
    assert web.post(body, **{**QUERY, "target": "local"}).status_code == 409
    assert web.post(b"queue_samples 1\n", "/api/v1/write", run="run", target="loop").status_code == 200
    assert web.post(body, **{**QUERY, "target": "loop"}).status_code == 409
    web.send(step(1), 9)
    other = {**QUERY, "agent": "b" * 16}
    assert web.post(body, **other).status_code == 409
    web.clock.set(T0 + 121)
    assert web.post(body, **other).status_code == 200, "the first was silent for two minutes: a job begun anew"
    assert web.post(body, **{**QUERY, "seq": "10"}).status_code == 409


def test_of_many_spools_the_longest_silent_are_forgotten(web: Web) -> None:
    for number in range(30):
        web.clock.set(T0 + 200 * number)
        web.send(step(1), 1, agent=f"{number:08d}")
    kept = [one.agent for one in web.store.pushes.forwarders("run")]
    assert kept == [f"{number:08d}" for number in range(29, 9, -1)]
