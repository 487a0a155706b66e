"""Writes `rollouts/step_N/train/{all,effective}/traces.jsonl` as prime-rl's file monitor does (verifiers 0.4.0).

An episode goes into `all` when it is scored, under the step that is being collected, and again into `effective` when
its batch is shipped, with its advantage. Messages are short and token arrays are left out, as of an endpoint that gives
none; steps far behind are removed, which a run would not do: an hour stays below 150 MB.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from server.demo.fates import INFRA
from server.demo.files import AppendFile
from server.demo.harness import trace_id
from server.demo.orchestrator import Orchestrator
from server.demo.records import Batch, Observer
from server.demo.rollouts import Call, Group, Rollout
from server.demo.scenarios import Scenario

KEPT_STEPS = 64
_INFO = '"info":{}'
_EMPTY_MESSAGE = {"user": "Solve the task.", "assistant": "Done.", "tool": "ok"}
Record = dict[str, object]


class Traces(Observer):
    """One `Rollout` is one episode with one trace. `start` is the run's, epoch seconds.

    Nothing is written of rollouts scored before `since` (epoch seconds): during the fast first hour, records of every
    rollout would take twice as long as everything else.
    """

    def __init__(
        self, scenario: Scenario, seed: int, orchestrator: Orchestrator, run_dir: Path, start: float,
        since: float = 0.0,
    ) -> None:  # fmt: skip
        self._since = since - start
        self._scenario = scenario
        self._seed = seed
        self._orchestrator = orchestrator
        self._dir = run_dir / "rollouts"
        self._start = start
        self._step = 0
        self._file: AppendFile | None = None
        # Episodes that wait to be shipped, as written.
        self._waiting: dict[Rollout, str] = {}

    def scored(self, now: float, rollout: Rollout) -> None:
        if now < self._since:
            return
        line = self._line(rollout, now)
        if not rollout.error:
            self._waiting[rollout] = line
        self._all(self._orchestrator.taken_batches + 1).line(line, self._start + now)

    def evaluated(self, now: float, rollout: Rollout) -> None:
        """Into a file of its own, below the step that is being collected."""
        if now < self._since:
            return
        stamp, path = self._start + now, self._new_path(self._orchestrator.taken_batches + 1, "all", "eval")
        # A few lines at a time, so the file is not kept open.
        with path.open("ab") as file:
            file.write(self._line(rollout, now).encode() + b"\n")
        os.utime(path, (stamp, stamp))

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        if now < self._since:
            return
        stamp = self._start + now
        file = AppendFile(self._new_path(batch.step, "effective"), stamp)
        for rollout in batch.rollouts():
            if rollout not in self._waiting:
                continue
            advantage = f'"info":{{"advantage":{rollout.reward - fmean(rollout.group.rewards):.6g}}}'
            file.line(self._waiting.pop(rollout).replace(_INFO, advantage, 1), stamp)
        file.flush()
        file.close()
        for group in batch.dropped:
            for rollout in group.rollouts:
                self._waiting.pop(rollout, None)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _all(self, step: int) -> AppendFile:
        if self._file is None or step != self._step:
            self.flush()
            self.close()
            self._step, self._file = step, AppendFile(self._new_path(step, "all"), self._start)
            shutil.rmtree(self._dir / f"step_{step - KEPT_STEPS}", ignore_errors=True)
        return self._file

    def _new_path(self, step: int, cohort: str, kind: str = "train") -> Path:
        folder = self._dir / f"step_{step}" / kind / cohort
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "traces.jsonl"

    # -- one episode -------------------------------------------------------------------------------------------

    def _line(self, rollout: Rollout, now: float) -> str:
        # The default separators would cost a tenth of the file.
        return json.dumps(self._episode(rollout, now), separators=(",", ":"))

    def _episode(self, rollout: Rollout, now: float) -> Record:
        scenario, group = self._scenario, rollout.group
        policy = {"start": group.version, "end": rollout.version_end}
        environment, kind = group.evaluates or scenario.environment, "eval" if group.evaluates else "train"
        return {
            "id": _hash(self._seed, "episode", rollout.id),
            "env": {"id": environment, "name": environment},
            "task": {"type": "Task", "data": {"idx": group.id}, "key": str(group.id)},
            "group": {"id": group_id(self._seed, group)},
            "run": {
                "type": kind,
                "id": _hash(self._seed, "run"),
                "name": scenario.run,
                "work": {"type": kind, "step": group.version + 1, "policy": policy},
            },
            "ok": not rollout.error,
            "errors": [],
            "traces": [self._trace(rollout, now)],
        }

    def _trace(self, rollout: Rollout, now: float) -> Record:
        return {
            "version": 1,
            "id": trace_id(self._seed, rollout),
            "verifiers": {"version": "0.4.0"},
            "agent": {"name": "agent", "trainable": True, "runtime": _runtime(rollout)},
            "nodes": list(_nodes(rollout.calls)),
            "calls": [self._call(rollout, index, call) for index, call in enumerate(rollout.calls)],
            "rewards": {} if rollout.error else {"solved": {"score": rollout.reward, "weight": 1.0}},
            "metrics": {"num_turns": float(rollout.turns)},
            "info": {},
            "is_completed": True,
            "ok": not rollout.error,
            "stop_condition": "max_output_tokens" if rollout.truncated else "agent_completed",
            "errors": list(_errors(rollout)),
            "timing": self._timing(rollout, now),
        }

    def _call(self, rollout: Rollout, index: int, call: Call) -> Record:
        is_last = index == len(rollout.calls) - 1
        return {
            "node": 2 * index + 1,
            "model": self._scenario.model,
            "finish_reason": "tool_calls" if not is_last else "length" if rollout.truncated else "stop",
            "time": self._span(call.start, call.end),
            "usage": {"prompt_tokens": call.input_tokens, "completion_tokens": call.output_tokens},
        }

    def _timing(self, rollout: Rollout, now: float) -> Record:
        set_up = rollout.ready - (rollout.setup_seconds if rollout.sandbox else 0.0)
        timing: Record = {"start": self._at(rollout.dispatched)}
        if rollout.sandbox is not None:
            timing["boot"] = self._span(rollout.sandbox.created, set_up)
        answered = sum(call.end - call.start for call in rollout.calls)
        return timing | {
            "setup": self._span(set_up, rollout.ready),
            "agent": {**self._span(rollout.ready, rollout.finished), "model": {"duration": round(answered, 3)}},
            "finalize": self._span(rollout.finished, rollout.finished),
            "scoring": self._span(rollout.finished, now),
        }

    def _span(self, start: float, end: float) -> dict[str, float]:
        return {"start": self._at(start), "end": self._at(end)}

    def _at(self, seconds: float) -> float:
        return round(self._start + seconds, 3)


def _errors(rollout: Rollout) -> Iterator[Record]:
    """Oldest first: boots that were tried again, and what it was lost by."""
    for text in rollout.boot_errors:
        yield {"type": INFRA, "message": text}
    if rollout.error:
        yield {"type": rollout.error, "message": "while it was scored"}


def group_id(seed: int, group: Group) -> str:
    """A group's id, as long as a trace's."""
    return _hash(seed, "group", group.id)


def _nodes(calls: list[Call]) -> Iterator[Record]:
    """Returns the conversation, a chain: question, answer, the command's output, answer, ..."""
    yield {"message": _message("user"), "sampled": False}
    for index in range(len(calls)):
        answer = _message("assistant")
        is_last = index == len(calls) - 1
        if not is_last:
            answer["tool_calls"] = [{"id": f"c{index}", "name": "bash", "arguments": "{}"}]
        yield {"parent": 2 * index, "message": answer, "sampled": True}
        if not is_last:
            message = {**_message("tool"), "tool_call_id": f"c{index}"}
            yield {"parent": 2 * index + 1, "message": message, "sampled": False}


def _message(role: str) -> Record:
    return {"role": role, "content": _EMPTY_MESSAGE[role]}


def _runtime(rollout: Rollout) -> Record:
    if rollout.sandbox is None:
        return {"type": "subprocess"}
    return {"type": "prime", "id": rollout.sandbox.id, "borrowed": False, "image": rollout.sandbox.image}


def _hash(*parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:32]
