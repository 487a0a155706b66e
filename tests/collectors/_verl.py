"""verl runs made by hand: a configuration of each trainer, and rows as its file and console loggers write them."""

import json
from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from typing import Any

SYNC_CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {
        "hybrid_engine": True,
        "model": {"path": "/models/Qwen3-4B"},
        "rollout": {"n": 4, "nnodes": 0, "n_gpus_per_node": 8},
    },
    "data": {"train_batch_size": 16, "max_response_length": 512},
    "trainer": {
        "experiment_name": "exp",
        "n_gpus_per_node": 8,
        "nnodes": 2,
        "total_training_steps": 3,
        "use_v1": True,
        "v1": {"sampler": {"max_off_policy_threshold": 8}, "trainer_mode": "sync"},
    },
}
STEP = {"timing_s/step": 20.0, "timing_s/gen": 12.0, "timing_s/old_log_prob": 2.0, "timing_s/update_actor": 5.0}


def mode(trainer: str) -> dict[str, Any]:
    return {
        **SYNC_CONFIG,
        "trainer": {
            **SYNC_CONFIG["trainer"],
            "v1": {"trainer_mode": trainer, "sampler": {"max_off_policy_threshold": 8}},
        },
    }


def lines(rows: dict[int, dict[str, Any]]) -> str:
    """As the file logger writes them."""
    return "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in rows.items())


def jsonl(folder: Path, rows: dict[int, dict[str, Any]]) -> Path:
    (folder / "exp.jsonl").write_text(lines(rows))
    return folder


def printed(config: dict[str, Any], rows: dict[int, dict[str, Any]]) -> Iterator[str]:
    """As the console logger writes them, through Ray."""
    for line in pformat(config).splitlines():
        yield f"\x1b[36m(TaskRunner pid=12, ip=10.0.0.1)\x1b[0m {line}"
    for step, data in rows.items():
        said = " - ".join(f"{key}:{pformat(figure)}" for key, figure in data.items())
        yield f"\x1b[36m(TaskRunner pid=12, ip=10.0.0.1)\x1b[0m step:{step} - {said}"


def console(folder: Path, config: dict[str, Any], rows: dict[int, dict[str, Any]]) -> Path:
    (folder / "console.log").write_text("\n".join(printed(config, rows)) + "\n")
    return folder
