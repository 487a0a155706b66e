"""The OpenAPI description: a schema for every answer, and answers that have exactly the fields of their schema."""

from collections.abc import Iterator
from contextlib import closing
from difflib import unified_diff
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from bench.docs.__main__ import OPENAPI, openapi_text
from bench.docs.pages import openapi
from server.api.alerts import add_alerts
from server.api.app import create_api
from server.api.push import add_pushes
from server.api.rollouts import add_rollouts
from server.api.runs import add_engines, add_sandboxes, add_what_if
from server.config import alerts as alerts_config
from server.query import Reader
from server.store import Store
from tests.api.rollouts_web import complete
from tests.push.test_pushed_targets import T0, lived

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

RUN = "/api/v1/runs/run"
# Path and query of every GET operation that answers about a run; `/preflight` has a test of its own.
ANSWERS = [
    "/healthz", "/readyz", "/api/v1/runs", f"{RUN}/status", f"{RUN}/signals", "/api/v1/targets", f"{RUN}/series",
    f"{RUN}/series?by=step", f"{RUN}/series?since=0:0", f"{RUN}/verdicts", "/api/v1/alerts?history=10",
    "/api/v1/rules?run=run", "/api/v1/notifications", "/api/v1/silences", f"{RUN}/sandboxes", f"{RUN}/rollouts",
    f"{RUN}/groups", f"{RUN}/events", f"{RUN}/funnel", f"{RUN}/census", f"{RUN}/cells?kind=seconds",
    f"{RUN}/rollouts/a", "/api/v1/metrics", "/api/v1/metrics?run=run", f"{RUN}/engines", f"{RUN}/steps",
    f"{RUN}/what-if", f"{RUN}/series?metric=reward_mean&metric=up",
]  # fmt: skip


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, description) of every operation of the whole application."""
    return [(method, path, one) for path, methods in openapi()["paths"].items() for method, one in methods.items()]


def test_every_operation_has_response_schemas_and_error_bodies() -> None:
    """An empty schema (`{}`, or an object without fields) describes nothing."""
    assert len(operations()) == 42
    for method, path, operation in operations():
        schemas = {
            code: one["schema"]
            for code, response in operation["responses"].items()
            for one in response.get("content", {}).values()
        }
        answers = [code for code in schemas if code.startswith("2")]
        assert answers and set(operation["responses"]) == set(schemas), (method, path)
        for code, schema in schemas.items():
            said = schema.get("items", schema)
            assert said.keys() & {"$ref", "anyOf", "properties"} or said.get("type") in ("string", "object"), path
            assert said.get("additionalProperties") is not True, (method, path, code)
        errors = {"400", "403", "413", "421"} | ({"404", "503"} if "{run}" in path and method == "get" else set())
        assert errors <= schemas.keys(), (method, path)
    error = openapi()["components"]["schemas"]["ErrorAnswer"]
    assert error["required"] == ["detail"]


def test_the_document_is_the_committed_copy() -> None:
    """Clients rely on the shapes. A change is renewed with the command below, and is a line of CHANGELOG.md."""
    changed = list(unified_diff(OPENAPI.read_text("utf-8").splitlines(), openapi_text().splitlines(), n=2))
    assert changed == [], "the API changed; if it is meant to: python -m bench.docs --openapi"


def test_the_token_is_described_and_open_paths_need_none() -> None:
    schemes = openapi()["components"]["securitySchemes"]
    assert (schemes["token"]["scheme"], schemes["session"]["name"]) == ("bearer", "rollscope_session")
    assert openapi()["security"] == [{"token": []}, {"session": []}, {}]
    free = {path for _, path, operation in operations() if operation.get("security") == []}
    assert free == {"/healthz", "/readyz", "/api/v1/heartbeat/{token}"}
    assert all(("401" in operation["responses"]) == (path not in free) for _, path, operation in operations())


@pytest.fixture
def api(store: Store) -> Iterator[FastAPI]:
    """A run with steps, rollouts, an event, a sandbox, a silence and a verdict, all of them pushed."""
    with lived(store) as run:
        reader = Reader(store, run.clock, alerts_config.defaults())
        made = create_api(reader, version="1", ready=lambda: None)
        for add in (add_sandboxes, add_rollouts):
            add(made, reader, store, run.clock)
        add_alerts(made, reader, store, run.clock, lambda token: False)
        add_pushes(made, store, run.clock, lambda name: True)
        add_what_if(made, reader)
        add_engines(made, reader)
        with closing(TestClient(made, base_url="http://test")) as web:
            for step in range(1, 5):
                text = f"trainer_step_seconds 30\ntrainer_wait_seconds 12\nreward_mean 0.{step}\n"
                assert web.post(f"/api/v1/write?run=run&step={step}", content=text).status_code == 200
                run.at(30.0 * step)
            rollouts = [complete("a", group_id="g", group_size=2), complete("b", group_id="g", group_size=2)]
            assert web.post(f"{RUN}/rollouts", json=rollouts).status_code == 200
            events = [{"kind": "weights_published", "version": 3, "ts": T0 + 100}]
            assert web.post(f"{RUN}/events", json=events).status_code == 200
            sandboxes = [{"id": "s", "provider": "own", "state": "running", "requested_at": T0, "ready_at": T0 + 9}]
            assert web.post(f"{RUN}/sandboxes", json=sandboxes).status_code == 200
            silence = {"matchers": [{"name": "alertname", "value": "X"}], "endsAt": T0 + 3600, "createdBy": "alice"}
            assert web.post("/api/v1/silences", json=silence).status_code == 200
        run.at(130.0, 135.0, 140.0)
        yield made


def test_answers_have_exactly_the_fields_of_their_schema(api: FastAPI) -> None:
    document = api.openapi()
    routes = [one for one in api.routes if isinstance(one, APIRoute) and "GET" in (one.methods or ())]
    empty = []
    with closing(TestClient(api, base_url="http://test")) as web:
        for path in ANSWERS:
            answer = web.get(path)
            assert answer.status_code == 200, (path, answer.text)
            route = next(one for one in routes if one.path_regex.fullmatch(path.partition("?")[0]))
            declared = document["paths"][route.path_format]["get"]["responses"]["200"]["content"]["application/json"]
            assert list(problems(answer.json(), declared["schema"], document["components"]["schemas"])) == [], path
            if answer.json() in ([], {"alerts": [], "history": []}):
                empty.append(path)
    assert empty == ["/api/v1/notifications", f"{RUN}/engines"]


TYPES: dict[str, Any] = {
    "null": type(None), "boolean": bool, "integer": int, "number": (int, float), "string": str, "array": list,
    "object": dict,
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], known: dict[str, Any], at: str = "") -> Iterator[str]:
    """Where a value differs from its schema; a field that the schema does not name is a difference, too."""
    if "$ref" in schema:
        yield from problems(value, known[schema["$ref"].rpartition("/")[2]], known, at)
    elif "anyOf" in schema:
        found = [list(problems(value, one, known, at)) for one in schema["anyOf"]]
        yield from min(found, key=len)
    elif value not in schema.get("enum", [value]):
        yield f"{at}: {value!r} is none of {schema['enum']}"
    elif "type" in schema and not _is(value, schema["type"]):
        yield f"{at}: {value!r} is no {schema['type']}"
    elif isinstance(value, list):
        kinds = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        for number, (one, kind) in enumerate(zip(value, kinds, strict=True)):
            yield from problems(one, kind, known, f"{at}[{number}]")
    elif isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, one in value.items():
            if fields and name not in fields:
                yield f"{at}.{name} is not in the schema"
            else:
                yield from problems(one, fields.get(name) or dict(others or {}), known, f"{at}.{name}")


def _is(value: Any, names: str | list[str]) -> bool:
    kinds = [TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    return any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in kinds)


def test_integers_stay_integers_on_the_wire(api: FastAPI) -> None:
    """A field declared as a float is written as it is stored: `bound` and counts are not turned into 3.0."""
    with closing(TestClient(api, base_url="http://test")) as web:
        text = web.get(f"{RUN}/what-if?move_gpus=0&concurrency=8").text
        assert '"changes":{"concurrency":8}' in text
