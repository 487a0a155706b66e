"""The resolved configs prime-rl's launcher leaves in `<run_dir>/configs` before anything runs."""

import json
import os
from pathlib import Path

from server.demo.engine_stats import MAX_MODEL_LEN
from server.demo.scenarios import Scenario

Config = dict[str, object]


def write_configs(scenario: Scenario, run_dir: Path, start: float, engines: list[str]) -> None:
    """rl.json and its parts, with the modification time of the launch (epoch `start`)."""
    folder = run_dir / "configs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in _configs(scenario, str(run_dir), engines).items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config, indent=2) + "\n")
        os.utime(path, (start, start))


def _configs(scenario: Scenario, run_dir: str, engines: list[str]) -> dict[str, Config]:
    trainer = _trainer(scenario, run_dir)
    orchestrator = _orchestrator(scenario, run_dir, engines)
    inference = _inference(scenario)
    launcher: Config = {
        "run": {"name": scenario.run},
        "output_dir": run_dir,
        "max_steps": None,
        "max_off_policy_steps": scenario.max_off_policy_steps,
        "deployment": _deployment(scenario),
        "trainer": trainer,
        "orchestrator": orchestrator,
        "inference": inference,
    }
    return {"rl": launcher, "trainer": trainer, "orchestrator": orchestrator, "inference": inference}


def _deployment(scenario: Scenario) -> Config:
    return {
        "type": "single_node",
        "gpus_per_node": 8,
        "num_train_gpus": scenario.train_gpus,
        "num_infer_gpus": scenario.engines,
    }


def _monitors() -> Config:
    return {"wandb": None, "file": {"path": "metrics.jsonl"}, "prime": None}


def _trainer(scenario: Scenario, run_dir: str) -> Config:
    return {
        "model": {"name": scenario.model, "seq_len": MAX_MODEL_LEN},
        "optim": {"type": "adamw", "lr": 1e-06},
        "ckpt": {"interval": scenario.checkpoint_every},
        "weight_broadcast": {"type": "filesystem"},
        "log": {"level": "info", "json_logging": False},
        "monitors": _monitors(),
        # Opt-in in prime-rl; left off, as most runs leave it.
        "metrics_server": None,
        "output_dir": run_dir,
        "max_steps": None,
    }


def _orchestrator(scenario: Scenario, run_dir: str, engines: list[str]) -> Config:
    return {
        "model": {
            "name": scenario.model,
            # base_url would be the router's; there is none here, so it is the first engine's.
            "client": {"base_url": f"{engines[0]}/v1" if engines else "", "admin_base_url": engines},
        },
        "train": {
            "source": [{"name": scenario.environment, "group_size": scenario.group_size}],
            "sampling": {"temperature": 1.0, "max_completion_tokens": scenario.max_tokens},
        },
        "eval": None,
        # Default 10; the cluster's TICK_SECONDS is this.
        "log": {"level": "info", "json_logging": False, "interval": 2.0},
        "monitors": _monitors(),
        "weight_broadcast": {"type": "filesystem"},
        "concurrency": {"max_inflight": scenario.max_in_flight},
        "output_dir": run_dir,
        "batch_size": scenario.batch_samples,
        "token_batch_size": None,
        "group_size": scenario.group_size,
        "seq_len": MAX_MODEL_LEN,
        "num_train_workers": scenario.train_gpus,
        "max_steps": None,
        "max_off_policy_steps": scenario.max_off_policy_steps,
    }


def _inference(scenario: Scenario) -> Config:
    return {
        "model": {"name": scenario.model, "max_model_len": MAX_MODEL_LEN},
        "vllm": {
            "tensor_parallel_size": 1,
            "data_parallel_size": scenario.engines,
            "max_num_seqs": scenario.max_num_seqs,
        },
    }
