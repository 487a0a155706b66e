"""Deleting a run over HTTP: confirmed, refused while it is collected, and gone from every answer. Both databases."""

from collections.abc import Iterator

import pytest

from server.api.runs import add_run_removal
from server.store import Store
from server.store.types import Batch
from tests.api.test_alerts import Web as AlertWeb
from tests.derive.test_alerts import WAITING, running, settings, wait
from tests.driven_run import T0, Bench, bench
from tests.store.test_removal import rows

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


class Web(AlertWeb):
    routes = (lambda api, reader, store, clock: add_run_removal(api, store, clock),)


@pytest.fixture
def run(store: Store) -> Iterator[Bench]:
    """An alert of the run fires."""
    with bench(store, settings(WAITING)) as made:
        running(made)
        for at in (0, 5, 10):
            wait(made, at, 50)
        yield made


def test_a_deleted_run_is_in_no_answer_and_in_no_table(run: Bench) -> None:
    web = Web(run)
    assert [one["name"] for one in web("GET", "/api/v1/runs").json()] == ["run"]
    assert len(web("GET", "/api/v1/alerts").json()["alerts"]) == 1
    assert 'run="run"' in web("GET", "/metrics").text
    answer = web("DELETE", "/api/v1/runs/run?confirm=run")
    assert (answer.status_code, answer.json()) == (200, {"deleted": "run"})
    assert web("GET", "/api/v1/runs").json() == [] and web("GET", "/api/v1/targets").json() == []
    assert web("GET", "/api/v1/alerts?history=10").json()["alerts"] == []
    assert 'run="run"' not in web("GET", "/metrics").text
    assert web("GET", "/api/v1/runs/run/status").status_code == 404
    # Of a run and of series the newest row stays, so that its number is not given out again.
    assert {name: count for name, count in rows(run.store).items() if count} == {"runs": 1, "series": 1}
    assert web("DELETE", "/api/v1/runs/run?confirm=run").status_code == 404


@pytest.mark.parametrize("query", ["", "?confirm=", "?confirm=other", "?confirm=true"])
def test_without_the_runs_name_nothing_is_deleted(run: Bench, query: str) -> None:
    answer = Web(run)("DELETE", f"/api/v1/runs/run{query}")
    assert answer.status_code == 400 and "confirm it with ?confirm=" in answer.json()["detail"]
    assert run.store.runs.get("run") is not None


def test_a_run_that_is_collected_is_refused_with_the_reason(run: Bench) -> None:
    run.store.write(Batch("run", run_fields={"collected_at": round((T0 + 10) * 1000)}))
    answer = Web(run)("DELETE", "/api/v1/runs/run?confirm=run")
    assert answer.status_code == 409 and "run run is being collected" in answer.json()["detail"]
    run.clock.set(T0 + 10 + 60)
    assert Web(run)("DELETE", "/api/v1/runs/run?confirm=run").status_code == 200


def test_deleting_needs_the_token(run: Bench) -> None:
    web = Web(run, token="s3cret")
    assert web("DELETE", "/api/v1/runs/run?confirm=run").status_code == 401
    bearer = {"authorization": "Bearer s3cret"}
    cross = {**bearer, "origin": "http://evil.example"}
    assert web("DELETE", "/api/v1/runs/run?confirm=run", headers=cross).status_code == 403
    assert web("DELETE", "/api/v1/runs/run?confirm=run", headers=bearer).status_code == 200
