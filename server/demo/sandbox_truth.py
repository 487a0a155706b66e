"""What really happened to the sandboxes: a line every 30 s, and the same numbers at the end of each step."""

import json
import math
from pathlib import Path

from server.demo.orchestrator import Orchestrator
from server.demo.prime_run import AppendFile
from server.demo.provider import Provider
from server.demo.records import Observer

EVERY_SECONDS = 30.0


def sandbox_state(provider: Provider, now: float) -> dict[str, object]:
    """Live sandboxes by state (the dangling ones run), totals since the run began, spin-ups of the last 5 minutes."""
    pending = provider.pending()
    done = sorted(seconds for at, seconds in provider.completed if at > now - 300.0)
    return {
        "states": provider.counts(),
        "starting": provider.starting,
        "dangling": provider.plan.dangling,
        "oldest_pending_seconds": now - pending[0].created if pending else 0.0,
        "created": provider.created,
        "failures": dict(sorted(provider.failures.items())),
        "spinups": len(done),
        "spinup_p50_seconds": nearest_rank(done, 0.5),
        "spinup_p95_seconds": nearest_rank(done, 0.95),
        "spinup_max_seconds": done[-1] if done else None,
        "credit_usd": provider.plan.credit_usd - provider.spent_usd(now),
    }


def nearest_rank(ordered: list[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class SandboxTruth(Observer):
    """Writes `truth_sandboxes.jsonl`. Epoch times; no collector reads it."""

    def __init__(self, orchestrator: Orchestrator, provider: Provider, folder: Path, start: float) -> None:
        self._orchestrator = orchestrator
        self._provider = provider
        self._start = start
        self._file = AppendFile(folder / "truth_sandboxes.jsonl", start)

    def tick(self, now: float) -> None:
        if now % EVERY_SECONDS:
            return
        census = self._orchestrator.census()
        line = {"t": self._start + now, "in_flight": self._orchestrator.in_flight.value, "census": census}
        self._file.line(json.dumps(line | sandbox_state(self._provider, now)), self._start + now)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
