"""Episodes as verifiers 0.4.0 saves them (`Episode.to_record`) and runs of them as prime-rl 559b4477 lays them out."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
BEGAN = 1_781_000_000.0


def trace(name: str, reward: float | None, at: float, **other: Any) -> Json:
    """A trace of two turns with a tool between: 10 s of boot, 20 + 30 s of generation, 5 s of tool, 2 s of scoring.

    48 tokens fed in (40, then 8 more), 60 + 100 generated; ends 70 s after it began.
    """
    phases = {"boot": (0, 10), "setup": (10, 12), "agent": (12, 67), "finalize": (67, 68), "scoring": (68, 70)}
    usages = [(40, 60, None), (8, 100, 100)]
    return {
        "version": 1, "id": name, "verifiers": {"version": "0.4.0"},
        "agent": {"runtime": {"type": "prime", "id": f"sbx-{name}"}, "name": "agent", "trainable": True},
        "nodes": [
            {"message": {"role": "user", "content": "SECRET?"}, "sampled": False, "token_ids": [1] * 40,
             "mask": [False] * 40},
            {"parent": 0, "message": {"role": "assistant", "content": "SECRET", "tool_calls": [
                {"id": "c", "name": "bash", "arguments": "SECRET"}]}, "sampled": True, "token_ids": [2] * 60,
             "mask": [True] * 60, "logprobs": [-0.5] * 60},
            {"parent": 1, "message": {"role": "tool", "tool_call_id": "c", "content": "SECRET"}, "sampled": False,
             "token_ids": [3] * 8, "mask": [False] * 8},
            {"parent": 2, "message": {"role": "assistant", "content": "SECRET"}, "sampled": True,
             "token_ids": [4] * 100, "mask": [True] * 100, "logprobs": [-0.5] * 100},
        ],
        "calls": [
            {"node": node, "finish_reason": reason, "time": {"start": at + start, "end": at + end},
             "usage": {"prompt_tokens": fed, "completion_tokens": made} | (
                 {} if cached is None else {"cached_input_tokens": cached})}
            for node, reason, start, end, (fed, made, cached) in (
                (1, "tool_calls", 12, 32, usages[0]), (3, "stop", 37, 67, usages[1]))
        ],
        "rewards": {"right": {"score": reward, "weight": 1.0}} if reward is not None else {},
        "metrics": {}, "info": {}, "is_completed": True, "ok": True, "stop_condition": "agent_completed", "errors": [],
        "timing": {"start": at, **{name: {"start": at + start, "end": at + end}
                                   for name, (start, end) in phases.items()}},
    } | other  # fmt: skip


def episode(
    name: str, group: str, version: int | tuple[int, int] | None, traces: Iterable[Json], *, step: int = 1,
    kind: str = "train", env: str = "math", **other: Any,
) -> Json:  # fmt: skip
    """An episode as the dispatcher stamps it; ``version``: of the policy, or at its group's dispatch and at its end."""
    start, end = version if isinstance(version, tuple) else (version, version)
    policy = {} if start is None else {"policy": {"start": start, "end": end}}
    return {
        "id": name, "env": {"id": env, "name": env}, "task": {"type": "T", "data": {"prompt": "SECRET"}},
        "group": {"id": group}, "run": {"type": "train", "id": "r", "name": "my-run",
                                        "work": {"type": kind, "step": step, **policy}},
        "ok": all(one["ok"] for one in traces), "errors": [], "traces": list(traces),
    } | other  # fmt: skip


def group(
    name: str, version: int | tuple[int, int], rewards: Iterable[float | None], at: float, **other: Any
) -> list[Json]:
    """A group of one agent: rollouts NAME0, NAME1, ... that end one second apart, the first 70 s after `at`."""
    return [
        episode(f"e{name}{n}", name, version, [trace(f"{name}{n}", reward, at + n)], **other)
        for n, reward in enumerate(rewards)
    ]


def failed(name: str, error: str, at: float, **other: Any) -> Json:
    """A trace that ended with an error after its first answer, without a reward."""
    one = trace(name, None, at, ok=False, stop_condition="error", errors=[{"type": error, "message": "SECRET"}])
    timing = {key: one["timing"][key] for key in ("start", "boot", "setup")}
    return one | {"timing": timing | {"agent": {"start": at + 12, "end": at + 40}}} | other


def shipped(episodes: Iterable[Json], advantages: Mapping[str, float]) -> list[Json]:
    """Those traces of the episodes that a batch holds, as `effective` has them."""
    found = []
    for one in episodes:
        kept = [{**t, "info": {"advantage": advantages[t["id"]]}} for t in one["traces"] if t["id"] in advantages]
        if kept:
            found.append({**one, "traces": kept})
    return found


def write(
    root: Path, step: int, episodes: Iterable[Json], kind: str = "train", cohort: str = "all", at: float = 0.0
) -> Path:
    """Append lines as the file monitor does; ``at``: when it was written."""
    file = root / "rollouts" / f"step_{step}" / kind / cohort / "traces.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in episodes)
    if at:
        os.utime(file, (at, at))
    return file


CONFIG: Json = {
    "max_steps": 100,
    "orchestrator": {
        "group_size": 4, "batch_size": 6, "max_off_policy_steps": 2, "algo": {"type": "grpo", "length_penalty": None},
        "train": {"filter_zero_advantages": True, "source": [{"name": "math", "group_size": 4, "algo": None}]},
        "eval": {"group_size": 2, "source": [{"name": "gsm", "group_size": 2}]},
    },
}  # fmt: skip


def configure(root: Path, **orchestrator: Any) -> None:
    """configs/rl.json as prime-rl resolves it, as far as it is read."""
    (root / "configs").mkdir(parents=True, exist_ok=True)
    text = json.dumps(CONFIG | {"orchestrator": CONFIG["orchestrator"] | orchestrator})
    (root / "configs" / "rl.json").write_text(text)
