"""A collector that is killed: within 30 s every place shows that the run is not collected."""

import signal
import time
from contextlib import closing
from pathlib import Path

from fastapi.testclient import TestClient

from server.api.alerts import add_alerts
from server.api.app import create_api
from server.config.alerts import defaults
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from tests.contradictions.checks import no_current_health, no_current_verdict, one_count_of_alerts, one_state
from tests.contradictions.snapshot import Snapshot, take
from tests.e2e.nasty import nasty
from tests.e2e.program import Program

SERIES = 'generator_requests_now{state="running"}'
# The promise: this long after the kill, the page's own cache included.
PROMISED_SECONDS = 30.0


def test_a_killed_collector_is_seen_everywhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with (
        nasty() as server,
        Program(tmp_path, "watch", f"{server.url}/good", "--run", "r1", "--store", store) as program,
    ):
        program.until("/api/v1/runs/r1/status", lambda s: s["signals"].get(SERIES, {}).get("value") == 128)
        assert _seen(store, time.time()).state == "live"
        program.end(signal.SIGKILL)
    shown = _seen(store, time.time() + PROMISED_SECONDS)
    assert shown.state == "not_collected"
    assert shown.text("overview", "run_state")["word"] == "Not collected"
    assert shown.text("overview", "answer.chip") == "Not collected"
    state = shown.text("runs", "runs.0")["state"]
    assert (state["name"], state["word"]) == ("not_collected", "Not collected")
    assert shown.runs[0]["state"]["name"] == "not_collected"
    assert ("rollscope_run_data_state", {"run": "r1", "state": "not_collected"}, 1.0) in shown.metrics
    assert "state: not collected since " in shown.cli
    for check in (one_state, no_current_verdict, no_current_health, one_count_of_alerts):
        assert list(check(shown)) == []


def _seen(url: str, now: float) -> Snapshot:
    """What every place shows of the store at this time."""
    with closing(Store.open(url, read_only=True)) as store:
        clock = ScaledClock(now)
        reader = Reader(store, clock, defaults())
        api = create_api(reader, version="test", ready=lambda: None)
        add_alerts(api, reader, store, clock, lambda token: False)
        with TestClient(api, base_url="http://127.0.0.1") as client:
            return take("", "killed", reader, client, "r1")
