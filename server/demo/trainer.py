"""The trainer: waits for a batch, computes, broadcasts the weights, checkpoints; then again.

The order is prime-rl's. Waiting includes the packing of the batch, as in `time/wait_for_batch`, because the trainer
cannot distinguish a missing batch from one in transit.
"""

from collections.abc import Callable
from random import Random

from server.demo.events import Agenda
from server.demo.faults import Conditions
from server.demo.records import Batch, Timing
from server.demo.scenarios import Scenario


class Trainer:
    """Times are seconds since the run began."""

    def __init__(self, scenario: Scenario, seed: int, agenda: Agenda) -> None:
        self.on_shipped: Callable[[float, Batch, float], None] = lambda now, batch, pack: None
        self.on_published: Callable[[float, int], None] = lambda now, version: None
        self.on_stepped: Callable[[Batch, float, float, Timing], None] = lambda batch, start, end, timing: None
        self.request: Callable[[float, Callable[[Batch, float], None]], None] = lambda now, deliver: None
        self.conditions = Conditions()
        # The current step never ends.
        self.hangs = False
        self._scenario = scenario
        self._agenda = agenda
        self._noise = Random(f"{seed}:trainer")
        self._start = 0.0

    def begin(self, now: float) -> None:
        self._start = now
        self.request(now, self._receive)

    def _receive(self, batch: Batch, now: float) -> None:
        # Spreads are log-normal sigmas: packing depends on lengths, loading on the file system, copies hardly vary.
        pack = self._around(self._scenario.pack_seconds, 0.15)
        self._agenda.plan(now + pack, lambda at: self._train(batch, pack, at))

    def _train(self, batch: Batch, pack: float, now: float) -> None:
        if self.hangs:
            return
        # Everything of the step is drawn here, so that later events cannot change it.
        self.on_shipped(now, batch, pack)
        timing = self._draw(batch, now - self._start)
        published = now + timing.load + timing.compute + timing.broadcast
        self._agenda.plan(published, lambda at: self._publish(batch, at))
        self._agenda.plan(published + timing.checkpoint, lambda at: self._end(batch, timing, at))

    def _draw(self, batch: Batch, wait: float) -> Timing:
        s = self._scenario
        compute = self._around(batch.total_tokens / s.train_tokens_per_second, s.compute_noise)
        is_checkpoint = batch.step % s.checkpoint_every == 0
        return Timing(
            wait=wait,
            load=self._around(s.load_seconds, 0.2),
            compute=compute,
            broadcast=self._around(s.broadcast_seconds, 0.1) * self.conditions.sync,
            checkpoint=self._around(s.checkpoint_seconds, 0.1) if is_checkpoint else 0.0,
        )

    def _around(self, seconds: float, spread: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, spread)

    def _publish(self, batch: Batch, now: float) -> None:
        if not self.hangs:
            self.on_published(now, batch.step)

    def _end(self, batch: Batch, timing: Timing, now: float) -> None:
        if self.hangs:
            return
        self.on_stepped(batch, self._start, now, timing)
        self.begin(now)
