"""The true state of the sandboxes: a line every 30 s, and the same numbers at the end of each step."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from server.demo.files import Files
from server.demo.harness import Harness
from server.demo.judges import Judges
from server.demo.orchestrator import Orchestrator
from server.demo.records import Observer

EVERY_SECONDS = 30.0


def sandbox_state(harness: Harness, now: float) -> dict[str, object]:
    """Live sandboxes by state (the dangling ones run), totals since the run began, spin-ups of the last 5 minutes.

    The second account is reported separately, below `modal`; it is simulated even if it is not served.
    """
    provider = harness.provider
    pending = provider.pending()
    return {
        "states": provider.counts(),
        "starting": provider.starting,
        "dangling": provider.plan.dangling,
        "oldest_pending_seconds": now - pending[0].created if pending else 0.0,
        "created": provider.created,
        "failures": dict(sorted(provider.failures.items())),
        **_spinups(provider.completed, now),
        "credit_usd": provider.plan.credit_usd - provider.spent_usd(now),
        **({"modal": judge_state(harness.judges, now)} if harness.judges else {}),
    }


def judge_state(judges: Judges, now: float) -> dict[str, object]:
    """The same of the second account; its failures by the provider's own names."""
    pending = judges.oldest_pending()
    return {
        "states": judges.counts(),
        "dangling": judges.plan.dangling,
        "oldest_pending_seconds": now - pending.created if pending else 0.0,
        "created": judges.created,
        "failures": dict(sorted(judges.failures.items())),
        **_spinups(judges.completed, now),
    }


def _spinups(completed: Iterable[tuple[float, float]], now: float) -> dict[str, object]:
    done = sorted(seconds for at, seconds in completed if at > now - 300.0)
    return {
        "spinups": len(done),
        "spinup_p50_seconds": nearest_rank(done, 0.5),
        "spinup_p95_seconds": nearest_rank(done, 0.95),
        "spinup_max_seconds": done[-1] if done else None,
    }


def nearest_rank(ordered: list[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class SandboxTruth(Files, Observer):
    """Writes `truth_sandboxes.jsonl`. Epoch times; no collector reads it."""

    def __init__(self, orchestrator: Orchestrator, harness: Harness, folder: Path, start: float) -> None:
        super().__init__(start)
        self._orchestrator = orchestrator
        self._harness = harness
        self._file = self._open(folder / "truth_sandboxes.jsonl")

    def tick(self, now: float) -> None:
        if now % EVERY_SECONDS:
            return
        census = self._orchestrator.census()
        line = {"t": self._start + now, "in_flight": self._orchestrator.in_flight.value, "census": census}
        self._file.line(json.dumps(line | sandbox_state(self._harness, now)), self._start + now)
