"""A run written by the real writers of wandb, MLflow and TensorBoard: calls of a logger, `(step, values)`, in order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support_writers import LiveWriter, live_writer, run_writer

Calls = Sequence[tuple[int, Mapping[str, float | None]]]

_HEAD = """
import json, math, sys
folder, config, calls = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
calls = [(s, {k: math.nan if v is None else v for k, v in values.items()}) for s, values in calls]
def flat(d, p=""):
    for k, v in d.items():
        yield from flat(v, p + k + ".") if isinstance(v, dict) else [(p + k, v)]
"""
WRITERS = {
    "wandb": """
import wandb
run = wandb.init(project="p", name="exp", config=config, dir=folder, mode="offline")
for step, values in calls:
    run.log(values, step=step)
run.finish()
""",
    "mlflow": """
import mlflow
mlflow.set_tracking_uri("sqlite:///" + folder + "/mlflow.db")
mlflow.set_experiment("p")
with mlflow.start_run(run_name="exp"):
    mlflow.log_params(dict(flat(config)))
    for step, values in calls:
        mlflow.log_metrics(values, step=step)
""",
    "tensorboard": """
from tensorboardX import SummaryWriter
writer = SummaryWriter(folder)
if config:
    writer.add_hparams(dict(flat(config)), {})
for step, values in calls:
    for key, value in values.items():
        writer.add_scalar(key, value, step)
writer.close()
""",
}

# The writer torch.utils.tensorboard wraps: what is logged is on disk at once.
_LIVE = """
import json, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for line in sys.stdin:
    step, values = json.loads(line)
    for key, value in values.items():
        one = Summary(value=[Summary.Value(tag=key, simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=one))
    writer.flush()
    print("logged", flush=True)
"""


def write(kind: str, folder: Path, calls: Calls, config: Mapping[str, Any] | None = None) -> Path:
    """Log a whole run; a value None is NaN. Returns the folder."""
    run_writer(_HEAD + WRITERS[kind], folder, json.dumps(config or {}), json.dumps(calls))
    return folder


@contextmanager
def live_tensorboard(folder: Path) -> Iterator["LiveBoard"]:
    """A trainer that is still logging."""
    with live_writer(_LIVE, folder) as writer:
        yield LiveBoard(writer)


class LiveBoard:
    """The run's writer: each call is on disk when `log` returns."""

    def __init__(self, writer: LiveWriter) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        assert self._writer.say(json.dumps([step, values])) == "logged"
