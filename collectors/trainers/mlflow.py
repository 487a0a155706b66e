"""A run of any framework on an MLflow tracking server, by its URL; the framework is detected by its keys (or stated).

The newest running run is read. Access to the server's database is not needed. The option ``framework`` names the
framework if its keys do not identify it. The reading position is not stored: after a restart of Rollscope the history
is requested again, which changes nothing.

Not available: artifacts, traces, models, system metrics.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from msgspec import structs

from collectors import modules
from collectors.formats import mlflow
from collectors.formats.rows import Logs, Sink, flat
from collectors.model import Collector, Cursor, Limits, Reading, ScrapeError, State
from collectors.training_logs.model import Framework
from collectors.training_logs.sources import Peek
from collectors.training_logs.tail import recognised, tail

# The path passed to a framework's tail: it exists everywhere and is empty.
NOWHERE = Path(os.devnull)


@dataclass(slots=True)
class _Memory:
    follower: mlflow.Follower = field(default_factory=mlflow.Follower)
    framework: Framework | None = None
    cursor: Cursor = field(default_factory=dict)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads what the newest run logged since the last poll, by the keys of its framework.

    Raises:
        ScrapeError: as `mlflow_rest.read`; ``not_a_run`` if the keys belong to no known framework.
    """
    memory: _Memory = state.setdefault("mlflow", _Memory())
    logs = await mlflow.read_rest(client, memory.follower, limits)
    if memory.framework is None or logs.restarted:
        memory.framework = _framework(memory.follower, logs, str(state.get("options", {}).get("framework", "")))
    reading = _digest(memory.framework, logs, memory.cursor)
    memory.cursor = reading.cursor or {}
    return structs.replace(reading, cursor=None)


def _framework(follower: mlflow.Follower, logs: Logs, named: str) -> Framework:
    frameworks = _frameworks()
    if named:
        if named not in frameworks:
            raise ScrapeError("not_a_run", f"option framework: {named} is not one of {', '.join(sorted(frameworks))}")
        return frameworks[named]
    peek = Peek(frozenset((*follower.seen, *follower.todo)), dict(flat(logs.config)))
    framework = next(
        (candidate for _, candidate in sorted(frameworks.items()) if recognised(candidate, peek) is not None), None
    )
    if framework is None:
        raise ScrapeError("not_a_run", f"the run's keys belong to none of {', '.join(sorted(frameworks))}")
    return framework


def _frameworks() -> dict[str, Framework]:
    candidates = [getattr(module, "FRAMEWORK", None) for _, module in modules("collectors.trainers")]
    return {framework.name: framework for framework in candidates if isinstance(framework, Framework)}


def _digest(framework: Framework, logs: Logs, cursor: Cursor) -> Reading:
    """Runs the framework's own tail over rows that were read already, each with its time."""
    sink = Sink("mlflow", "an MLflow server", lambda _: [NOWHERE], lambda _path, _cursor, _limits: logs)
    over_http = replace(framework, sinks=(sink,), run_files=None, folder_facts=None, config_marks=(), marks=(".*",))
    source = {"sink": sink.name, "path": str(NOWHERE)}
    return tail(over_http, NOWHERE, {"source": source, **cursor}, Limits(), 0.0)


COLLECTOR = Collector(
    name="mlflow",
    actor="trainer",
    reads="the newest run on an MLflow tracking server, of any supported framework",
    versions="3.17.2 by recorded answers",
    poll=poll,
    matches_server=mlflow.matches_server,
    options=("framework",),
)
