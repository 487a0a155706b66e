"""Charts that users chose, over HTTP and in the configuration. Both databases."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.api.app import create_api
from server.api.panels import add_panels
from server.config.settings import build
from server.lib.clock import ScaledClock
from server.lib.errors import ConfigError
from server.query import Reader
from server.store import Store
from server.store.types import OwnPanel

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")
DECLARED = [OwnPanel(signal="trainer_wait_ratio", title="Wait")]
WAIT: dict[str, Any] = {"signal": "trainer_wait_ratio", "metric": "", "title": "Wait", "split": "", "log": False}
KV: dict[str, Any] = {
    "signal": "",
    "metric": 'kv_cache_usage_ratio{target="a"}',
    "title": "",
    "split": "engine",
    "log": True,
}


@pytest.fixture
def web(store: Store) -> TestClient:
    reader, clock = Reader(store, ScaledClock(1000.0)), ScaledClock(1000.0)
    api = create_api(reader, version="1", ready=lambda: None)
    add_panels(api, reader, store, clock, DECLARED)
    return TestClient(api)


def test_panels_of_a_user_are_kept_in_their_order(web: TestClient, store: Store) -> None:
    assert web.get("/api/v1/panels").json() == {"declared": [WAIT], "own": []}
    given = {"panels": [{"metric": KV["metric"], "split": "engine", "log": True}, {"signal": "reward"}]}
    answer = web.put("/api/v1/panels?user=mia", json=given)
    assert answer.status_code == 200 and answer.json()["own"][0] == KV
    again = {"panels": given["panels"][::-1]}
    assert [row["signal"] for row in web.put("/api/v1/panels?user=mia", json=again).json()["own"]] == ["reward", ""]
    assert web.get("/api/v1/panels?user=mia").json()["own"][1] == KV
    assert web.get("/api/v1/panels?user=bo").json()["own"] == []
    assert web.put("/api/v1/panels?user=mia", json={"panels": []}).json()["own"] == []
    assert store.panels.of("mia") == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "must be"),
        (b'{"panels": [{}]}', "panels[0]: needs exactly one of signal and metric"),
        (b'{"panels": [{"signal": "reward", "metric": "up"}]}', "panels[0]: needs exactly one"),
        (
            b'{"panels": [{"signal": "nope"}, {"metric": 3}]}',
            "panels[0].signal: no signal is named 'nope'; panels[1].metric",
        ),
        (
            b'{"panels": [{"metric": "up", "wide": 1}]}',
            "[0].wide: unknown; keys: signal, metric, title, split",
        ),
        (b'{"panels": [{"metric": "up{"}]}', "panels[0].metric: 'up{' is no name with labels"),
        (b'{"panels": [{"metric": "up", "title": "a\\nb"}]}', "panels[0].title: has line breaks or other control"),
        (b'{"panels": [{"metric": "up", "log": "yes"}]}', "panels[0].log: must be true or false"),
        (b'{"panels": [' + b",".join([b'{"metric": "up"}'] * 25) + b"]}", "25 panels; at most 24"),
    ],
)
def test_a_bad_list_changes_nothing(web: TestClient, body: bytes, said: str) -> None:
    web.put("/api/v1/panels?user=mia", json={"panels": [{"signal": "reward"}]})
    answer = web.put("/api/v1/panels?user=mia", content=body)
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert len(web.get("/api/v1/panels?user=mia").json()["own"]) == 1


def test_a_name_is_needed(web: TestClient) -> None:
    assert web.put("/api/v1/panels", json={"panels": []}).status_code == 422
    assert web.put("/api/v1/panels?user=" + 101 * "a", json={"panels": []}).status_code == 422
    assert web.put("/api/v1/panels?user=%20", json={"panels": []}).status_code == 422


def test_panels_of_the_configuration_are_checked_all_at_once() -> None:
    table = {"panel": [{"signal": "trainer_wait_ratio", "title": "Wait"}, {"metric": "up", "log": True}]}
    assert build({"dashboard": table}, {}).panels == (DECLARED[0], OwnPanel(metric="up", log=True))
    with pytest.raises(ConfigError) as caught:
        build({"dashboard": {"panel": [{"signal": "nope"}, {"metric": "up", "titel": "x"}, 3], "panels": []}}, {})
    assert sorted(caught.value.problems) == [
        "dashboard.panel[0].signal: no signal is named 'nope'",
        "dashboard.panel[1].titel: unknown key; did you mean title?",
        "dashboard.panel[2]: must be a table: [[dashboard.panel]]",
        "dashboard.panels: unknown key; did you mean panel?",
    ]
