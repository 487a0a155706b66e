"""MLflow's tracking server over its REST API: the newest run's metrics, as rows (checked with MLflow 3.17.2).

The search for runs returns every metric's newest value. Values between it and the previous one are requested key by
key, so one call of the logger is joined from several requests and emitted when all its keys are complete. A poll makes
two searches (POST, read-only) and at most `MAX_REQUESTS` requests of histories.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from collectors.formats.mlflow.files import settings
from collectors.formats.rows import Logged, Logs
from collectors.model import Limits, ScrapeError
from collectors.transport import rest

API = "/api/2.0/mlflow"
# Requests of histories per poll, 2 to 5 ms each on a near server; the rest follows in the next poll, at once.
MAX_REQUESTS = 60
# MLflow's own bound on a page of a history is 25,000.
PAGE_VALUES = 5_000
EXPERIMENTS, RUNS = 500, 50
# Share of a poll's time for histories; the rest is for the searches before.
TIME_SHARE = 0.5

ENDS: Mapping[str, str] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "was killed"}


@dataclass(slots=True)
class Follower:
    """The reading position on one server.

    Attributes:
        run: the id of the run that is read.
        seen: key -> (milliseconds, step) of the newest value that was emitted or held.
        held: values not yet emitted, by (milliseconds, step) of their call.
        todo: key -> page token, of histories still to be requested.
        repeated: keys logged several times a step: their newest value is not the only new one.
    """

    run: str = ""
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    todo: dict[str, str] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)


async def read(client: httpx.AsyncClient, follower: Follower, limits: Limits) -> Logs:
    """Rows of the newest run since the last call; `Logs.cursor` names the run.

    Raises:
        ScrapeError: as `rest.get_json`; ``not_a_run`` when no run has logged anything yet.
    """
    run = await _newest_run(client, limits)
    info, data = _object(run, "info"), _object(run, "data")
    run_id = rest.text(info.get("run_id"), 64)
    restarted = follower.run not in ("", run_id)
    if follower.run != run_id:
        follower.run, follower.seen, follower.held, follower.todo, follower.repeated = run_id, {}, {}, {}, set()
    _plan(data, follower)
    await _histories(client, follower, limits)
    logs = Logs(restarted=restarted, cursor={"run": run_id}, more=bool(follower.todo))
    if not follower.todo:
        logs.rows = [Logged(values, step, ms / 1000.0) for (ms, step), values in sorted(follower.held.items())]
        follower.held = {}
    logs.run_name = rest.text(info.get("run_name"), 200)
    logs.config = settings((rest.text(p.get("key"), 250), str(p.get("value", ""))) for p in _objects(data, "params"))
    status = str(info.get("status"))
    if not logs.more and status in ENDS:
        logs.finished, logs.failed = f"MLflow's run {ENDS[status]}", status != "FINISHED"
    return logs


async def _newest_run(client: httpx.AsyncClient, limits: Limits) -> dict[str, Any]:
    """The run that started last among those with metrics; a running one comes before finished ones."""
    experiments = await rest.search_json(client, f"{API}/experiments/search", {"max_results": EXPERIMENTS}, limits)
    ids = [rest.text(experiment.get("experiment_id"), 64) for experiment in _objects(experiments.json, "experiments")]
    query = {"experiment_ids": ids, "max_results": RUNS, "order_by": ["attributes.start_time DESC"]}
    answer = await rest.search_json(client, f"{API}/runs/search", query, limits)
    runs = [run for run in _objects(answer.json, "runs") if _objects(_object(run, "data"), "metrics")]
    if not runs:
        raise ScrapeError("not_a_run", "no run on this MLflow server has logged a metric yet")
    return next((run for run in runs if _object(run, "info").get("status") == "RUNNING"), runs[0])


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Returns whether an MLflow server answers."""
    try:
        experiments = await rest.search_json(client, f"{API}/experiments/search", {"max_results": 1}, limits)
    except ScrapeError:
        return False
    return bool(_objects(experiments.json, "experiments"))


def _plan(data: Mapping[str, Any], follower: Follower) -> None:
    """Takes the newest values that directly follow the previous ones; plans requests of histories for other keys."""
    for key, at, value in _values(data):
        before = follower.seen.get(key)
        if before == at or key in follower.todo:
            continue
        if before is not None and at[1] == before[1] + 1 and key not in follower.repeated:
            _hold_value(follower, key, at, value)
        else:
            follower.todo[key] = ""


async def _histories(client: httpx.AsyncClient, follower: Follower, limits: Limits) -> None:
    clock = asyncio.get_running_loop().time
    until = clock() + limits.timeout_seconds * TIME_SHARE
    for _ in range(MAX_REQUESTS):
        if not follower.todo or clock() > until:
            return
        key, page = next(iter(follower.todo.items()))
        params: dict[str, str | int | list[str]] = {"run_id": follower.run, "metric_key": key}
        params |= {"max_results": PAGE_VALUES, **({"page_token": page} if page else {})}
        answer = await rest.get_json(client, f"{API}/metrics/get-history", params, limits)
        _collect_history(key, answer.json, follower)
        token = rest.text(answer.json.get("next_page_token"), 4096) if isinstance(answer.json, dict) else ""
        if token and token != page:
            follower.todo[key] = token
        else:
            del follower.todo[key]


def _collect_history(key: str, history: Any, follower: Follower) -> None:
    before, steps = follower.seen.get(key), set()
    for _, at, value in sorted(_values(history), key=lambda value_row: value_row[1]):
        if at[1] in steps:
            follower.repeated.add(key)
        steps.add(at[1])
        if before is None or at > before:
            _hold_value(follower, key, at, value)


def _hold_value(follower: Follower, key: str, at: tuple[int, int], value: float) -> None:
    follower.held.setdefault(at, {})[key] = value
    follower.seen[key] = max(at, follower.seen.get(key, at))


def _values(answer: Any) -> Iterator[tuple[str, tuple[int, int], float]]:
    """(key, (milliseconds, step), value); JSON has no NaN, so the server writes it as text."""
    for item in _objects(answer, "metrics"):
        key, stamp, step = item.get("key"), rest.number(item.get("timestamp")), rest.number(item.get("step", 0))
        if isinstance(key, str) and stamp is not None and step is not None:
            yield key[:250], (int(stamp), int(step)), _float(item.get("value"))


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _object(answer: Any, key: str) -> dict[str, Any]:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, dict) else {}


def _objects(answer: Any, key: str) -> list[dict[str, Any]]:
    values = answer.get(key) if isinstance(answer, dict) else None
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []
