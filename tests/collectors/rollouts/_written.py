"""What each framework writes, as its source writes it: rows as dicts, files as bytes; and how tests read them.

Texts and token lists are there and long, as in the real files.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from collectors.model import Collector, Limits, Rollout

TEXT = 'He said: "x = [1, 2]", then \\ and "quit".\n' * 20
TOKENS = list(range(300))
# Modification times of files: far in the past of the `now` that tests give.
EPOCH = 1_700_000_000.0


def write(path: Path, data: bytes, at: float) -> None:
    """A file as it is at a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def tinker(iteration: int, rewards: list[list[float]], sampled_at: int, split: str = "train") -> bytes:
    """rl/rollout_logging.py: a trajectory of two steps each."""
    step = {"episode_done": False, "metrics": {"ok": 1.0}, "logs": {"said": TEXT}, "reward": 0.0}
    return jsonl(
        {
            "schema_version": 1, "split": split, "iteration": iteration, "group_idx": group, "traj_idx": index,
            "tags": ["math"], "sampling_client_step": sampled_at, "total_reward": reward, "final_reward": reward,
            "trajectory_metrics": {},
            "steps": [{"step_idx": 0, "ob_len": 30, "ac_len": 7, **step},
                      {"step_idx": 1, "ob_len": 50, "ac_len": 5, **step}],
            "final_ob_len": 60,
        }
        for group, members in enumerate(rewards)
        for index, reward in enumerate(members)
    )  # fmt: skip


def verl(step: int, rows: list[tuple[str, float]], *, uid: bool) -> bytes:
    """trainer/ppo/v1/trainer_base.py:1225, with `uid` of the V1 trainers; ``rows``: prompt and score."""
    seen: dict[str, int] = {}

    def key(prompt: str) -> str:
        seen[prompt] = seen.get(prompt, -1) + 1
        return f"9f1c-{prompt}_{seen[prompt]}_0"

    return jsonl(
        {"input": f"user {prompt} {TEXT}", "output": TEXT, "gts": "4", "score": score, "step": step}
        | ({"uid": key(prompt)} if uid else {"acc": score > 0})
        for prompt, score in rows
    )


def open_instruct(step: int, rewards: list[list[float]]) -> bytes:
    """rl_utils.py:30-128."""
    size = len(rewards[0])
    return jsonl(
        {
            "step": step, "sample_idx": group * size + index, "prompt_idx": group, "prompt_tokens": TOKENS[:11],
            "response_tokens": TOKENS[: 100 + index], "reward": reward, "advantage": reward - sum(members) / size,
            "finish_reason": "length" if index else "stop", "dataset": "gsm8k", "ground_truth": TOKENS,
            "request_info": {"num_calls": 2, "timeouts": 0, "tool_errors": "", "tool_outputs": TEXT,
                             "tool_runtimes": 0.1, "tool_calleds": True,
                             "tool_call_stats": [{"name": "a"}, {"name": "b"}], "rollout_state": {}},
            "logprobs": [-0.5] * 100,
        }
        for group, members in enumerate(rewards)
        for index, reward in enumerate(members)
    )  # fmt: skip


def roll(step: int, rewards: list[list[float]], *, ids: bool = True) -> bytes:
    """pipeline/rlvr/utils.py: one object of columns."""
    groups = [group for group, members in enumerate(rewards) for _ in members]
    scores = [reward for members in rewards for reward in members]
    columns = {
        "id": [f"q{group}" if ids else "" for group in groups],
        "difficulty": ["hard"] * len(groups),
        "prompt": [f"{TEXT}{group}" for group in groups],
        "test_cases": [TEXT] * len(groups),
        "tag": ["t"] * len(groups),
        "domain": ["math_rule"] * len(groups),
        "responses": [TEXT] * len(groups),
        "scores": scores,
        "sampling_params": [json.dumps({"x": TOKENS})] * len(groups),
        "global_step": [step] * len(groups),
    }
    return jsonl([columns])


def roll_agentic(step: int, rewards: list[list[float]], mode: str = "train") -> bytes:
    """pipeline/agentic/env_manager/agent_native_env_manager.py:364-418."""
    texts = [
        json.dumps({
            "trajectory_id": f"web_{step}_{step + 1}_{group}_{index}_7_42_20260801_120000_0000{group}{index}",
            "timestamp": "20260801_120000_000000", "current_step": step + 1,
            "env_info": {"env_id": index, "group_id": group, "tag": "web", "seed": 42, "episode_id": 7, "mode": mode},
            "timing_info": {"traj_time_env_total": 12.5},
            "length_info": {"num_actions": 3, "terminated": True, "truncated": index > 0,
                            "step_response_length": 33.33},
            "reward_info": {"episode_reward": reward, "step_rewards": [0, 0, reward]},
            "failure_info": {"failure_mode": "timeout" if index else "", "has_failure": bool(index)},
            "metrics": {}, "last_observation": TEXT,
        })
        for group, members in enumerate(rewards)
        for index, reward in enumerate(members)
    ]  # fmt: skip
    columns = {"trajectory_data": texts, "messages": [json.dumps([TEXT])] * len(texts), "tools": ["[]"] * len(texts)}
    return jsonl([{**columns, "exp_name": ["x"] * len(texts), "global_step": [step] * len(texts)}])


def nemo_rl(rewards: list[list[float]]) -> bytes:
    """algorithms/grpo.py:5252 and utils/logger.py:1071: each value a list of one."""
    rows = [(group, reward) for group, members in enumerate(rewards) for reward in members]
    return jsonl(
        {
            "agent_ref": [{"name": "coder"}], "content": [TEXT], "rewards": [reward], "input_lengths": [70],
            "token_ids": [[5, 6, group, *TOKENS[3:]]], "token_loss_mask": [[0, 0, 0] + [1] * 67 + [0] * 230],
            "sample_loss_mask": [1.0], "advantages": [[0.25] * 300], "generation_logprobs": [[-1.5e-3] * 300],
            "prev_logprobs": [[-1.5e-3] * 300], "idx": index,
        }
        for index, (group, reward) in enumerate(rows)
    )  # fmt: skip


def event(ts: float, kind: str, sample: int, turn: int = -1, version: str = "", detail: str = "") -> dict[str, Any]:
    """miles/dashboard/store.py:169."""
    return {"ts": ts, "kind": kind, "sample_index": sample, "group_index": sample // 2, "turn": turn,
            "weight_version": version, "detail": detail}  # fmt: skip


def miles(samples: Iterable[tuple[int, float]], status: str = "completed") -> bytes:
    """miles/ray/rollout/debug_data.py: compact separators; ``samples``: index and reward."""
    rows = [
        {"sample_index": index, "group_index": index // 2, "status": status, "reward": reward, "prompt": TEXT,
         "messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]}
        for index, reward in samples
    ]  # fmt: skip
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def tailed(
    collector: Collector, path: Path, now: float, limits: Limits | None = None, cursor: Mapping[str, Any] | None = None
) -> tuple[list[Rollout], dict[str, Any], int]:
    """Tail to the end: records, cursor, rows dropped. The cursor goes through JSON each time, as the store's does."""
    found: list[Rollout] = []
    at, dropped = dict(cursor or {}), 0
    assert collector.tail is not None
    while True:
        reading = collector.tail(path, at, limits or Limits(), now)
        found += reading.rollouts
        at, dropped = json.loads(json.dumps(reading.cursor)), dropped + reading.dropped
        if not reading.more:
            return found, at, dropped


def merged(records: Iterable[Rollout]) -> dict[str, Rollout]:
    """Records by id: what is told wins over what is not, the later over the earlier; uses are a set."""
    known: dict[str, Rollout] = {}
    for one in records:
        before = known.get(one.rollout_id)
        if before is None:
            known[one.rollout_id] = one
            continue
        told = {
            name: getattr(one, name) for name in Rollout.__struct_fields__ if getattr(one, name) not in (None, "", ())
        }
        uses = {use.version: use for use in (*one.consumptions, *before.consumptions)}
        told["consumptions"] = tuple(
            sorted(uses.values(), key=lambda use: use.version if use.version is not None else -1)
        )
        known[one.rollout_id] = structs.replace(before, **told)
    return known
