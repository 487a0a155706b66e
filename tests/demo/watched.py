"""A demo watched from outside: process, sockets, files, collectors, store, signals, verdict; nothing is replaced."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from demo.faults import read
from demo.process import Demo
from demo.pushes import Poster
from demo.scenarios import SCENARIOS
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.cli.demo import Cluster
from server.derive.driver import RunDriver
from server.lib.clock import ScaledClock
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from server.targets.resolve import attach
from server.verdict.model import Verdict, VerdictInput
from server.verdict.rules import Memory, remember

START = 1_800_000_000.0


@dataclass
class Watched:
    """What Rollscope says at the end, and what is true. `verdicts`: (seconds since the start, verdict) per tick."""

    values: dict[str, float | None] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    down: list[str] = field(default_factory=list)
    lifecycle: str = ""
    mode: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.verdicts[-1][1]


def seen_by(driver: RunDriver) -> VerdictInput:
    """What the rules see at the driver's newest tick."""
    assert driver.watermark is not None
    now, deriver, answers = driver.watermark, driver.deriver, driver._answers
    told = {name: dict(by_labels) for name, by_labels in answers.now().items()}
    return VerdictInput(
        now, deriver.mode, deriver.lifecycle, deriver.facts, told, tuple(deriver.health.values()),
        lambda name, ts: answers.stale(now, name, ts), deriver.running_since, deriver.book.last(10),
    )  # fmt: skip


def watch(
    scenario: str, seed: int, seconds: float, store: Store, folder: Path, *,
    inject: Sequence[str] = (), steps: int | None = None, every: float = 10.0,
) -> Watched:  # fmt: skip
    """For so many seconds, or until the trainer has done so many steps; looked at ``every`` so many seconds."""
    faults = [read(text, SCENARIOS[scenario].sandboxes is not None) for text in inject]
    demo = Demo(scenario, seed, folder, START, 0.0, faults)
    clock, writer, found = ScaledClock(START), Writer(store), Watched()
    run, reader = attach(Same(demo).settings()), Reader(store, clock)
    loop = RunLoop(Attached(run.name, run.targets, run.facts), LoopServices(store, writer, clock))
    api = create_api(reader, version="test", ready=lambda: None)
    add_rollouts(api, reader, store, clock)
    with closing(demo), TestClient(api, base_url="http://127.0.0.1") as client:
        demo.poster = Posted(client, run.name)
        asyncio.run(_drive(demo, loop, clock, seconds, steps, found, every))
        found.truth = truth_of(demo)
    writer.close()
    found.about = json.loads((folder / "truth.json").read_text("utf-8"))
    status = reader.status(run.name)
    found.values = {signal.name: signal.value for signal in status.signals.values()}
    found.why = {signal.name: signal.why for signal in status.signals.values()}
    found.down = [target.target for target in status.trust if not target.up]
    found.lifecycle, found.mode = status.lifecycle, status.mode
    return found


class Same(Cluster):
    """The demo in this process, named as the command names it."""

    def __init__(self, demo: Demo) -> None:
        self.ready = demo.ready


class Posted(Poster):
    """Takes lines to the real route, without a socket between."""

    def __init__(self, client: TestClient, run: str) -> None:
        self._client, self._route = client, f"/api/v1/runs/{run}/rollouts"

    def post(self, lines: list[str]) -> None:
        left = iter(lines)
        while text := "\n".join(islice(left, 2_000)):
            answer = self._client.post(self._route, content=text, headers={"content-type": "application/x-ndjson"})
            assert answer.json()["refused_count"] == 0, answer.json()["refused"][:3]


def truth_of(demo: Demo) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(str(demo.ready["truth"])).read_text("utf-8").splitlines()]


async def _drive(
    demo: Demo,
    loop: RunLoop,
    clock: ScaledClock,
    seconds: float,
    steps: int | None,
    found: Watched,
    every: float,
) -> None:
    memory: Memory | None = None
    t = START
    while t < START + seconds and (steps is None or len(truth_of(demo)) < steps):
        t += every
        demo.advance(t)
        clock.set(t)
        await loop.step(t, patient=True)
        if loop.pipeline.driver.watermark is not None:
            memory, verdict = remember(memory, seen_by(loop.pipeline.driver))
            found.verdicts.append((t - START, verdict))
    await loop.close()
