"""verl runs through the real writers of three sinks, and TransferQueue's page."""

import json
from pathlib import Path

import pytest

from collectors.model import Limits, ScrapeError
from collectors.trainers import verl, verl_transfer_queue
from tests.collectors._frameworks import tail, values
from tests.collectors._reading import TESTDATA
from tests.collectors._verl import STEP, mode
from tests.support_writers import run_writer

COLLECTOR = verl.COLLECTOR

WRITER = """
import json, sys
kind, folder, config, rows = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
if kind == "wandb":
    import wandb
    run = wandb.init(project="p", name="exp", config=config, dir=folder, mode="offline")
    for step, data in rows:
        wandb.log(data, step=step)
    run.finish()
elif kind == "trackio":
    import os
    os.environ["TRACKIO_DIR"] = folder
    import trackio
    trackio.init(project="p", name="exp", config=config)
    for step, data in rows:
        trackio.log(data, step=step)
    trackio.finish()
else:
    import mlflow
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlruns.db")
    mlflow.set_experiment("p")
    mlflow.start_run(run_name="exp")
    flat = {}
    def walk(value, prefix=""):
        for key, item in value.items():
            walk(item, f"{prefix}{key}/") if isinstance(item, dict) else flat.__setitem__(prefix + key, item)
    walk(config)
    mlflow.log_params(flat)
    for step, data in rows:
        mlflow.log_metrics({key.replace("@", "_at_"): value for key, value in data.items()}, step=step)
    mlflow.end_run()
"""


@pytest.mark.parametrize("kind", ["wandb", "trackio", "mlflow"])
def test_through_the_real_writers(kind: str, tmp_path: Path) -> None:
    rows = [(step, {**STEP, "critic/score/mean": step / 4, "val-core/x/mean@1": 0.5}) for step in (1, 2, 3)]
    run_writer(WRITER, kind, tmp_path, json.dumps(mode("separate_async")), json.dumps(rows))
    reading = tail(COLLECTOR, tmp_path)
    for step in (1, 2, 3):
        found = values(reading, step)
        assert (found["trainer_wait_seconds"], found["reward_mean"], found["trainer_samples"]) == (12, step / 4, 64)
    assert (reading.facts["mode"], reading.facts["group_size"], reading.facts["batch_samples"]) == ("async", 4, 64)
    assert "times_estimated" not in reading.facts
    assert reading.unmapped == {}


def test_transfer_queue_counts_the_samples_that_hold_data() -> None:
    """512 keys of partition train, 64 of them prompts: 0.875 of them hold data. Partition val is evaluation."""
    body = (TESTDATA / "verl_transfer_queue" / "page.prom").read_bytes()
    reading = verl_transfer_queue.parse(body, {}, Limits())
    assert [(s.metric, s.value) for s in reading.samples] == [("queue_samples", 448)]
    assert reading.unmapped == {}
    nothing = b"\n".join(line for line in body.splitlines() if b"production_progress" not in line) + b"\n"
    assert verl_transfer_queue.parse(nothing, {}, Limits()).samples == ()
    with pytest.raises(ScrapeError, match="not a page of TransferQueue"):
        verl_transfer_queue.parse(b"up 1\n", {}, Limits())
