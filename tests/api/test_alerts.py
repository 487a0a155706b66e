"""Silences, alerts, rules and heartbeats over HTTP, through the whole application with its gate. Both databases."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from server.api.alerts import add_alerts
from server.api.app import close_api, create_api
from server.api.gate import Gate
from server.lib.secret import Secret
from server.push.heartbeats import Heartbeats, HeartbeatSettings, HeartbeatWatch
from server.store import Store
from tests.derive.test_alerts import WAITING, running, settings, states, wait
from tests.driven_run import T0, Bench, bench

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

TOKEN = "0123456789abcdef"
BEATS = (HeartbeatSettings("trainer-heartbeat", Secret(TOKEN), 60.0),)
SILENCE: dict[str, Any] = {
    "matchers": [{"name": "alertname", "value": "QueueLong", "isRegex": False, "isEqual": True}],
    "endsAt": T0 + 3600,
    "createdBy": "alice",
    "comment": "planned",
}


class Web:
    """The application of a run, without a socket."""

    routes: tuple[Callable[..., None], ...] = ()

    def __init__(self, run: Bench, token: str | None = None) -> None:
        api = create_api(run.reader, version="1", ready=lambda: None)
        beats = Heartbeats(run.store, run.clock, {"run": BEATS})
        add_alerts(api, run.reader, run.store, run.clock, beats.beat)
        for add in self.routes:
            add(api, run.reader, run.store, run.clock)
        close_api(api)
        self._app = Gate(api, hosts=["test"], token=token)

    def __call__(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(ask())


@pytest.fixture
def run(store: Store) -> Iterator[Bench]:
    """QueueLong fires."""
    with bench(store, settings(WAITING)) as made:
        running(made)
        for at in (0, 5, 10):
            wait(made, at, 50)
        yield made


def test_alerts_and_their_history(run: Bench) -> None:
    web = Web(run)
    found = web("GET", "/api/v1/alerts?history=10").json()
    (alert,) = found["alerts"]
    assert (alert["name"], alert["state"], alert["value"], alert["unit"]) == ("QueueLong", "firing", 50.0, "requests")
    assert alert["url"] == f"/?run=run&start={T0 - 1800:.0f}&end={T0 + 900:.0f}"
    assert found["history"] == []
    wait(run, 15, 0)
    found = web("GET", "/api/v1/alerts?run=run&history=10").json()
    assert found["alerts"] == [] and [past["resolved_at"] for past in found["history"]] == [T0 + 15]
    assert web("GET", "/api/v1/alerts?run=nope").status_code == 404


def test_a_silence_from_its_making_to_its_end(run: Bench) -> None:
    web = Web(run)
    made = web("POST", "/api/v1/silences", json=SILENCE)
    assert made.status_code == 200
    identity = made.json()["silenceID"]
    (listed,) = web("GET", "/api/v1/silences").json()
    assert (listed["id"], listed["state"], listed["matchers"]) == (identity, "active", ['alertname="QueueLong"'])
    assert (listed["starts_at"], listed["ends_at"], listed["created_by"]) == (T0 + 10, T0 + 3600, "alice")
    wait(run, 15, 50)
    assert run.reader.alerts.active("run")[0].muted.startswith("silenced by alice until")
    assert web("DELETE", f"/api/v1/silences/{identity}").json() == {"status": "ended"}
    assert web("DELETE", f"/api/v1/silences/{identity}").status_code == 404
    assert web("GET", "/api/v1/silences").json() == []
    assert web("GET", "/api/v1/silences?expired=true").json()[0]["state"] == "expired"
    wait(run, 20, 50)
    assert run.reader.alerts.active("run")[0].muted == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "must be an object"),
        (json.dumps({**SILENCE, "matchers": []}).encode(), "1 to 50"),
        (json.dumps({**SILENCE, "endsAt": T0 - 1}).encode(), "in the future"),
    ],
)
def test_a_bad_silence_is_answered_in_words_and_changes_nothing(run: Bench, content: bytes, said: str) -> None:
    web = Web(run)
    answer = web("POST", "/api/v1/silences", content=content)
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert web("GET", "/api/v1/silences").json() == []


def test_another_sites_page_cannot_silence_us(run: Bench) -> None:
    web = Web(run)
    headers = {"origin": "http://evil.example"}
    assert web("POST", "/api/v1/silences", json=SILENCE, headers=headers).status_code == 403
    assert web("DELETE", "/api/v1/silences/x", headers=headers).status_code == 403
    assert web("POST", "/api/v1/silences", json=SILENCE, headers={"origin": "http://test"}).status_code == 200


def test_rules_and_notifications(run: Bench) -> None:
    web = Web(run)
    (rule,) = web("GET", "/api/v1/rules?run=run").json()
    assert (rule["name"], rule["class"], rule["why"]) == ("QueueLong", "tuning", "")
    assert rule["expression"] == "generator_requests_waiting > 10 for 10s"
    (note,) = web("GET", "/api/v1/notifications?run=run").json()
    assert (note["receiver"], note["kind"], note["status"], note["alerts"]) == (
        "hook", "webhook", "pending", ["QueueLong firing"],
    )  # fmt: skip
    assert note["group_key"] == '{}:{alertname="QueueLong", run="run"}'
    assert web("GET", "/api/v1/notifications?limit=0").status_code == 422
    assert web("GET", "/openapi.json").status_code == 200  # warnings are errors: no operation is there twice


# ---- heartbeats


def look(run: Bench, watch: HeartbeatWatch, at: float) -> None:
    for batch, arrivals in watch.look(run.ingest, T0 + at):
        run.writer.submit(batch)
        run.driver.feed(arrivals)
    run.writer.flush()
    run.advance(T0 + at, live=True)


def trust(run: Bench) -> tuple[bool, float | None, str]:
    found = {target.target: target for target in run.reader.targets("run")}["trainer-heartbeat"]
    return found.up, found.age_seconds, found.error


def test_a_bare_get_is_a_sign_of_life_and_silence_is_a_target_down(store: Store) -> None:
    rules = settings("[[rule]]\nname='HeartbeatMissed'\nfor='10s'\n")
    with bench(store, rules) as run:
        running(run)
        web, watch = Web(run, token="a-token-for-people"), HeartbeatWatch(store, "run", BEATS, T0)
        look(run, watch, 0)
        assert trust(run) == (True, None, "no push yet")
        run.clock.set(T0 + 5)
        assert web("GET", f"/api/v1/heartbeat/{TOKEN}").json() == {"status": "ok"}  # no header: the path is the token
        assert web("HEAD", f"/api/v1/heartbeat/{TOKEN}").status_code == 200
        look(run, watch, 10)
        assert trust(run) == (True, 5.0, "")
        look(run, watch, 65)
        assert trust(run)[0] is True
        for at in (70, 75, 80):
            look(run, watch, at)
        assert trust(run) == (False, 75.0, "no heartbeat for 75 s; expected every 60 s")
        assert ("HeartbeatMissed", "firing") in states(run)
        web("POST", f"/api/v1/heartbeat/{TOKEN}")
        look(run, watch, 85)
        assert "HeartbeatMissed" not in dict(states(run))


def test_a_heartbeat_never_heard_is_down_once_it_is_due(store: Store) -> None:
    with bench(store) as run:
        watch = HeartbeatWatch(store, "run", BEATS, T0)
        look(run, watch, 60)
        assert trust(run)[0] is True
        look(run, watch, 65)
        assert trust(run) == (False, None, "no heartbeat received; expected every 60 s")


def test_a_wrong_token_is_a_404_and_beats_of_a_loop_are_one_write(store: Store) -> None:
    with bench(store) as run:
        web = Web(run)
        assert web("GET", "/api/v1/heartbeat/0123456789abcdeF").status_code == 404
        assert web("GET", "/api/v1/heartbeat/").status_code == 404
        assert store.alerts.heartbeats("run") == []
        for _ in range(5):
            web("GET", f"/api/v1/heartbeat/{TOKEN}")
        assert [(beat.name, beat.beats) for beat in store.alerts.heartbeats("run")] == [("trainer-heartbeat", 1)]


def test_the_people_s_token_still_guards_everything_else(run: Bench) -> None:
    web = Web(run, token="a-token-for-people")
    for path in ("/api/v1/alerts", "/api/v1/silences", "/api/v1/heartbeats", "/api/v1/rules"):
        assert web("GET", path).status_code == 401
    assert web("POST", "/api/v1/silences", json=SILENCE).status_code == 401
