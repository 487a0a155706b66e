"""A run's loop driven by hand over real lists and engines."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from collectors.model import Limits, Target
from server.alerts.settings import AlertSettings
from server.lib.clock import ScaledClock
from server.query import Reader, TargetTrust
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached, DiscoverSettings, PendingSource

T0 = 1_800_000_000.0
# Who answers at all is given time for it; who does not is soon given up.
LIMITS, HASTY = Limits(timeout_seconds=30.0), Limits(timeout_seconds=0.2)


class Watched:
    """One run. `step` moves event time on by one tick of 5 s."""

    def __init__(
        self, store: Store, discover: Sequence[DiscoverSettings], targets: Sequence[Target], start: float,
        limits: Limits, alerts: AlertSettings | None, awaited: Sequence[PendingSource], runner: asyncio.Runner,
    ) -> None:  # fmt: skip
        self.now, self._runner = start, runner
        self.clock, self.writer = ScaledClock(start), Writer(store)
        self.loop = RunLoop(
            Attached("run", tuple(targets), discover=tuple(discover), awaited=tuple(awaited)),
            LoopServices(store, self.writer, self.clock, alerts, limits=limits),
        )
        self.reader = Reader(store, self.clock)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 5
            self.clock.set(self.now)
            self._runner.run(self.loop.step(self.now, patient=True))

    def targets(self) -> dict[str, TargetTrust]:
        return {target.target: target for target in self.reader.targets("run")}

    def up(self) -> dict[str, bool]:
        """Of those that are targets, and are here."""
        found = self.targets().values()
        return {one.target: one.up for one in found if one.gone_since is None and one.actor != "discovery"}

    def value(self, name: str) -> float | None:
        return {signal.name: signal.value for signal in self.reader.status("run").signals.values()}.get(name)

    @property
    def tokens(self) -> float | None:
        return self.value("generator_generated_tokens_total")

    @property
    def running(self) -> float | None:
        return self.value('generator_requests{state="running"}')

    def seen(self) -> tuple[float | None, float | None]:
        """(requests running, tokens in all)."""
        return self.running, self.tokens

    def firing(self) -> list[tuple[str, str]]:
        """(rule, target) of the alerts on targets that fire."""
        found = self.reader.alerts.active("run")
        return [(one.name, one.labels["target"]) for one in found if one.state == "firing" and "target" in one.labels]

    def close(self) -> None:
        self._runner.run(self.loop.close())
        self.writer.close()


@contextmanager
def following(
    store: Store, *discover: DiscoverSettings, targets: Sequence[Target] = (), start: float = T0,
    limits: Limits = LIMITS, alerts: AlertSettings | None = None, awaited: Sequence[PendingSource] = (),
) -> Iterator[Watched]:  # fmt: skip
    with asyncio.Runner() as runner:
        watched = Watched(store, discover, targets, start, limits, alerts, awaited, runner)
        try:
            yield watched
        finally:
            watched.close()


def write(path: Path, *places: str, **labels: str) -> None:
    path.write_text(json.dumps([{"targets": places, "labels": labels}]))


def by_file(path: Path, name: str = "engines", **more: object) -> DiscoverSettings:
    return DiscoverSettings("file_sd", (str(path),), name, **more)  # type: ignore[arg-type]
