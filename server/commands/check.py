"""`rollscope check`: validates the configuration and reads every target once. Nothing is stored."""

import asyncio
import math
from collections.abc import Sequence

import collectors
from collectors.model import Limits, Reading, Target
from server import signals
from server.attach import Attached, attach
from server.clock import WallClock
from server.config import ConfigError, RunSettings
from server.derive import Deriver, is_gap, why
from server.query.names import format_name
from server.scrape import TargetReader
from server.signals._window import StepKey


def probe(runs: Sequence[RunSettings]) -> tuple[str, bool]:
    """A report for the terminal and whether everything answered."""
    if not runs:
        return "the configuration is valid; it names no run", True
    lines, fine = [], True
    for run in runs:
        try:
            found = attach(run)
        except ConfigError as error:
            lines += [f"{run.name}: {problem}" for problem in error.problems]
            fine = False
            continue
        text, good = _run(found)
        lines += text
        fine = fine and good
    return "\n".join(lines), fine


def _run(run: Attached) -> tuple[list[str], bool]:
    lines, fine = [f"run {run.name}"], True
    now = WallClock().now()
    deriver = Deriver(signals.load(), carry=lambda _: math.inf)
    for target in run.targets:
        reading, words = asyncio.run(_read(target, now))
        lines.append(f"  {target.name} ({target.collector}): {words}")
        fine = fine and reading is not None
        if reading is not None:
            lines += [f"    fact {name} = {value}" for name, value in sorted(reading.facts.items())]
            _feed(deriver, target, reading, now)
    deriver.facts.update(run.facts)
    return lines + _coverage(deriver, now), fine


def _feed(deriver: Deriver, target: Target, reading: Reading, now: float) -> None:
    deriver.facts.update(reading.facts)
    deriver.mode = str(deriver.facts.get("mode", deriver.mode))
    steps: dict[tuple[str, int], tuple[float, dict[StepKey, float]]] = {}
    for sample in reading.samples:
        ts = sample.ts if sample.ts is not None else now
        if sample.step is None:
            deriver.sample(ts, target.name, sample.metric, sample.labels, sample.value)
        else:
            _, values = steps.setdefault((sample.axis, sample.step), (ts, {}))
            values[(sample.metric, sample.labels)] = sample.value
    for (axis, number), (ts, values) in steps.items():
        deriver.recall(axis, 0, number, ts, target.name, values)


async def _read(target: Target, now: float) -> tuple[Reading | None, str]:
    reader = TargetReader(target, collectors.load()[target.collector], limits=Limits())
    outcome = await reader.read(now)
    await reader.close()
    if outcome.reading is None:
        return None, f"DOWN, {outcome.error}"
    reading = outcome.reading
    names = {sample.metric for sample in reading.samples}
    more = ", more to read" if reading.more else ""
    unmapped = f", {len(reading.unmapped)} unmapped keys" if reading.unmapped else ""
    return (
        reading,
        f"up, {len(reading.samples)} samples of {len(names)} metrics{unmapped}{more}, {outcome.seconds:.2f} s",
    )


def _coverage(deriver: Deriver, now: float) -> list[str]:
    """What every signal would say from what was read: its values, or what it lacks."""
    lines = []
    for name, _, answer in deriver.steps_now(now) + deriver.tick(now):
        if is_gap(answer):
            lines.append(f"  {name}: none: {why(answer)}")
        else:
            values = ", ".join(f"{format_name(name, value.labels)} = {value.value:.4g}" for value in answer)  # type: ignore[union-attr]
            lines.append(f"  {values}")
    return lines
