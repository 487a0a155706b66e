"""One look at a target, for `check` and for the first lines of `watch`: what it is, and what it says."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import collectors
from collectors.model import Limits, Reading, Sample, Target
from server.scrape import TargetReader

# A history of months has more; its beginning says whose it is, and the newest step is what `watch` is for.
MAX_CALLS = 40
KEPT_SAMPLES = 200_000
# The first lines of `watch` must not wait for a long history.
FIRST = Limits(tail_bytes=1 << 20, tail_rows=400)


@dataclass(slots=True)
class Seen:
    """What a target answered. ``error``: why it did not; "" when it is up."""

    target: Target
    error: str = ""
    seconds: float = 0.0
    more: bool = False
    reader: str = ""
    facts: dict[str, str | float] = field(default_factory=dict)
    count: int = 0
    metrics: set[str] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return not self.error

    def take(self, reading: Reading, seconds: float) -> None:
        self.facts.update(reading.facts)
        self.count += len(reading.samples)
        self.metrics |= {sample.metric for sample in reading.samples}
        # Windows are over the last steps: of a long history only its end is kept.
        self.samples = [*self.samples, *reading.samples][-KEPT_SAMPLES:]
        self.unmapped.update(reading.unmapped)
        self.origins = {**reading.origins, **self.origins}
        self.reader, self.more, self.seconds = reading.reader or self.reader, reading.more, self.seconds + seconds

    def identity(self) -> dict[str, str]:
        """Framework, version, mode, run and reader, as far as they are told."""
        facts = {key: str(self.facts.get(key, "")) for key in ("framework", "framework_version", "mode", "run_name")}
        told = {"framework": facts["framework"], "version": facts["framework_version"], "mode": facts["mode"]}
        told |= {"run": facts["run_name"], "reader": self.reader}
        return {key: value for key, value in told.items() if value}


def look(targets: Sequence[Target], now: float, limits: Limits | None = None, calls: int = MAX_CALLS) -> list[Seen]:
    """Read each target from its beginning, all of it within ``calls`` reads. Nothing is stored."""
    return asyncio.run(_all(targets, now, limits or Limits(), calls))


async def _all(targets: Sequence[Target], now: float, limits: Limits, calls: int) -> list[Seen]:
    return list(await asyncio.gather(*(_look(target, now, limits, calls) for target in targets)))


async def _look(target: Target, now: float, limits: Limits, calls: int) -> Seen:
    seen = Seen(target)
    reader = TargetReader(target, collectors.load()[target.collector], limits=limits)
    for _ in range(calls):
        outcome = await reader.read(now)
        if outcome.reading is None:
            seen.error = str(outcome.error)
            break
        reader.committed(outcome)
        seen.take(outcome.reading, outcome.seconds)
        if not seen.more:
            break
    await reader.close()
    return seen


def introduce(targets: Sequence[Target], now: float) -> Iterator[str]:
    """A line for each target: what it was taken for, and by what log."""
    for seen in look(targets, now, FIRST, calls=1):
        yield f"{seen.target.name} ({seen.target.collector}): {words(seen) if seen.up else f'DOWN, {seen.error}'}"


def words(seen: Seen) -> str:
    """What it is, in one line: ``trl 1.16.0, mode async, run grpo-tiny, read from trackio async-grpo.db``."""
    told = seen.identity()
    checked = f"(checked against {collectors.load()[seen.target.collector].versions})"
    name = f"{told.get('framework', seen.target.collector)} {told.get('version', checked)}"
    named = {"mode": "mode", "run": "run", "reader": "read from"}
    return ", ".join([name, *(f"{word} {told[key]}" for key, word in named.items() if key in told)])
