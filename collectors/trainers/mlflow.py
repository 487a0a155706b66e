"""Any framework's run on an MLflow tracking server, by its URL: whose keys it has is found out (or named).

The newest run that is running is read. It needs no access to the server's database; the option ``framework`` names
the framework where its keys do not tell. Where the reading stood is not kept over a restart of ours: the history is
asked for again then, and changes nothing.

Does not know: artifacts, traces, models; system metrics are left alone.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from collectors import modules
from collectors.formats.mlflow import rest as mlflow_rest
from collectors.formats.rows import Logs, Sink, flat
from collectors.model import Collector, Cursor, Limits, Reading, ScrapeError, State
from collectors.training_logs.model import Framework
from collectors.training_logs.sources import Peek
from collectors.training_logs.tail import recognised, tail

# What a framework's tail is given for a path: it exists everywhere, and holds nothing.
NOWHERE = Path(os.devnull)


@dataclass(slots=True)
class _Memory:
    follower: mlflow_rest.Follower = field(default_factory=mlflow_rest.Follower)
    framework: Framework | None = None
    cursor: Cursor = field(default_factory=dict)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """What the newest run logged since the last poll, in the words of the framework that logged it.

    Raises:
        ScrapeError: as `mlflow_rest.read`; ``not_a_run`` when the keys are no framework's we know.
    """
    memory: _Memory = state.setdefault("mlflow", _Memory())
    logs = await mlflow_rest.read(client, memory.follower, limits)
    if memory.framework is None or logs.restarted:
        memory.framework = _framework(memory.follower, logs, str(state.get("options", {}).get("framework", "")))
    reading = _digest(memory.framework, logs, memory.cursor)
    memory.cursor = reading.cursor or {}
    return replace(reading, cursor=None)


def _framework(follower: mlflow_rest.Follower, logs: Logs, named: str) -> Framework:
    known = _frameworks()
    if named:
        if named not in known:
            raise ScrapeError("not_a_run", f"option framework: {named} is none of {', '.join(sorted(known))}")
        return known[named]
    peek = Peek(frozenset((*follower.seen, *follower.todo)), dict(flat(logs.config)))
    found = next((one for _, one in sorted(known.items()) if recognised(one, peek) is not None), None)
    if found is None:
        raise ScrapeError("not_a_run", f"the run's keys are those of none of {', '.join(sorted(known))}")
    return found


def _frameworks() -> dict[str, Framework]:
    found = [getattr(module, "FRAMEWORK", None) for _, module in modules("collectors.trainers")]
    return {one.name: one for one in found if isinstance(one, Framework)}


def _digest(framework: Framework, logs: Logs, cursor: Cursor) -> Reading:
    """The framework's own tail, over rows that are here already, each with its time."""
    sink = Sink("mlflow", "an MLflow server", lambda _: [NOWHERE], lambda _path, _cursor, _limits: logs)
    over_http = replace(framework, sinks=(sink,), beside=None, folder_facts=None, config_marks=(), marks=(".*",))
    source = {"sink": sink.name, "path": str(NOWHERE)}
    return tail(over_http, NOWHERE, {"source": source, **cursor}, Limits(), 0.0)


COLLECTOR = Collector(
    name="mlflow",
    actor="trainer",
    reads="the newest run on an MLflow tracking server, of any supported framework",
    versions="3.17.2 by recorded answers",
    poll=poll,
    matches_server=mlflow_rest.matches_server,
    options=("framework",),
)
