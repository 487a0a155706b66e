"""Attaches to inputs as `rollscope watch` does, and returns what the product then shows. The clock is simulated."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from collectors.model import Limits
from server.alerts.settings import AlertSettings
from server.config.alerts import defaults
from server.lib.clock import ScaledClock
from server.query import Reader
from server.query.types import SignalNow, Status
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import TICK_SECONDS
from server.store import Store, Writer, migrate
from server.targets.model import Attached, RunSettings
from server.targets.resolve import attach, source_of

RUN = "field"
INPUTS = Path(__file__).parent.parent / "testdata" / "field"
# A loaded machine must not turn an engine that answers into one that is down.
_PATIENT = Limits(timeout_seconds=60.0)


class Product:
    """A run in a store of its own. `step` reads what is due and moves the clock."""

    def __init__(self, loop: RunLoop, reader: Reader, clock: ScaledClock, runner: asyncio.Runner) -> None:
        self._loop, self._clock, self._runner, self.reader = loop, clock, runner, reader

    def step(self, seconds: float = 0.0, before: Callable[[float], None] = lambda now: None) -> Status:
        """Moves the clock by ``seconds`` in ticks; ``before`` is called before the reads of each tick."""
        end = self._clock.now() + seconds
        while True:
            before(self._clock.now())
            self._runner.run(self._loop.step(self._clock.now(), patient=True))
            if self._clock.now() >= end:
                return self.status()
            self._clock.set(min(end, self._clock.now() + TICK_SECONDS))

    def status(self) -> Status:
        return self.reader.status(RUN)

    def signals(self) -> Mapping[str, SignalNow]:
        """Every signal by its name with labels."""
        return self.status().signals

    def value(self, name: str) -> float | None:
        return self.signals()[name].value


@contextmanager
def watching(
    sources: Sequence[str | Path],
    now: float,
    alerts: AlertSettings | None = None,
    facts: Mapping[str, str | float] | None = None,
) -> Iterator[Product]:
    """Attaches to URLs, files and folders at ``now`` (epoch seconds). The default alert rules are in force.

    ``facts``: the user's own, as in the configuration.
    """
    attached = attach(RunSettings(RUN, tuple(source_of(str(source)) for source in sources)), _PATIENT)
    clock = ScaledClock(now)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        migrate(url)
        with closing(Store.open(url)) as store, closing(Writer(store)) as writer, asyncio.Runner() as runner:
            alerts = alerts or defaults()
            loop = RunLoop(
                Attached(RUN, attached.targets, attached.facts | (facts or {})),
                LoopServices(store, writer, clock, alerts, limits=_PATIENT),
            )
            for reader in loop.readers:
                reader._random = random.Random(0)  # the jitter of a dead target's back-off: the same in each run
            yield Product(loop, Reader(store, clock, alerts), clock, runner)
            runner.run(loop.close())
