"""Feeds a simulated run to the real signals and the real judge, in the form of collectors' readings.

Readings become samples and steps in canonical names, each when it could have been read; `server.derive.deriver` and
`server.derive.results` make signals of them, `server.verdict.rules` a verdict at every tick. Only the store is left
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from bench.verdict.config import Config
from bench.verdict.sim import Page, Row, Sim
from collectors.model import Consumption, Labels, Rollout, Target
from server import signals
from server.derive.deriver import Deriver
from server.derive.results import SignalResults
from server.ingest.rollouts import RolloutIngest
from server.signals.model import TargetState
from server.store.types import Batch, SeriesKey
from server.verdict.model import Verdict, VerdictInput
from server.verdict.rules import remember

T0 = 1_800_000_000.0
TICK, MOST_TICKS = 5.0, 200
SOURCES = ("engines", "queue", "in_flight", "wait", "zero")
"""What may be missing."""

ENGINE = ("generator_requests_running", "generator_requests_waiting", "kv_cache_usage_ratio", "generator_tokens_total",
          "generator_preemptions_total", "generator_requests_finished_total")  # fmt: skip
_OF = {
    "queue": ("stale_dropped_rollouts", "backpressure_seconds", "dispatch_gate_wait_seconds", "queue_samples"),
    "in_flight": ("in_flight_rollouts",),
    "wait": ("trainer_wait_seconds", "generation_seconds"),
    "zero": ("groups_all_solved_ratio", "groups_none_solved_ratio"),
}
INSTANTS = frozenset({"queue_samples", "in_flight_rollouts"})
IN_FLIGHT: Labels = (("state", "generating"),)
_TRAINER = Target("trainer", "run", "trl_traces", "trainer", path="/nowhere")
_SIGNALS = {item.name: item for item in signals.load()}


class _Ids:
    """The only part of the store that `SignalResults` uses: series ids."""

    def __init__(self) -> None:
        self._ids: dict[SeriesKey, int] = {}
        self.series = self  # `SignalResults` calls `store.series.intern`

    def intern(self, run: str, keys: Sequence[SeriesKey]) -> list[int]:
        return [self._ids.setdefault(key, len(self._ids)) for key in keys]


@dataclass(slots=True)
class Told:
    """The verdict and the signals at an instant."""

    at: float
    verdict: Verdict


@dataclass(slots=True)
class Feed:
    """Plays one run to the pipeline. ``missing``: a source without data."""

    config: Config
    missing: str = ""
    deriver: Deriver = field(init=False)
    answers: SignalResults = field(init=False)
    records: RolloutIngest = field(init=False)
    seen: VerdictInput | None = None

    def __post_init__(self) -> None:
        self.deriver = Deriver(_SIGNALS.values(), lambda _: max(15.0, 3 * self.config.page))
        self.answers = SignalResults(cast(Any, _Ids()), "run", _SIGNALS, self.deriver)
        c = self.config
        facts: dict[str, str | float] = {
            "framework": "prime_rl", "batch_samples": c.batch, "group_size": c.group, "max_num_seqs": c.slots,
        }  # fmt: skip
        if not c.sync and self.missing != "zero":
            facts["filters_zero_advantage"] = float(c.filtered)
        if c.boot or c.tool:
            facts["has_sandbox"] = 1.0
        if c.row_only:
            facts["max_in_flight"] = c.cap
        if c.trainer_gpus:
            facts |= {"trainer_gpus": c.trainer_gpus, "generator_gpus": c.generator_gpus}
            facts |= {"max_staleness_versions": c.bound} if c.policy in ("gate", "drop") else {}
        self.records = RolloutIngest(facts=facts)
        self.deriver.facts.update(facts)
        self.deriver.mode = "sync_split" if c.sync else "async"

    def play(self, rows: Sequence[Row], pages: Sequence[Page]) -> Iterator[Told]:
        """The current verdict at each tick."""
        memory, page, row = None, 0, 0
        for tick in ticks(self.config):
            while page < len(pages) and pages[page].at <= tick:
                self._page(pages[page])
                page += 1
            while row < len(rows) and rows[row].end + self.config.lag <= tick:
                self._row(rows[row], tick)
                row += 1
            self.answers.write(self.deriver.tick(T0 + tick), Batch(run="run"))
            self.seen = self._seen(T0 + tick)
            memory, verdict = remember(memory, self.seen)
            yield Told(tick, verdict)

    def _seen(self, now: float) -> VerdictInput:
        d = self.deriver
        stale = partial(self.answers.stale, now)
        return VerdictInput(
            now, d.mode, d.lifecycle, d.facts, self.answers.now(), tuple(d.health.values()), stale, d.running_since,
            d.book.last(10),
        )  # fmt: skip

    # ---- readings

    def _page(self, page: Page) -> None:
        ts = T0 + page.at
        self.deriver.see(TargetState("trainer", "prime_rl", "trainer", True, ts, ts, interval_seconds=self.config.page))
        if self.missing != "engines":
            self._engines(ts, page)
        if self.config.row_only:
            return
        if not self.config.sync and self.missing != "queue":
            self.deriver.sample(ts, "trainer", "queue_samples", (), page.queue)
        if not self.config.sync and self.missing != "in_flight":
            self._census(ts, page)

    def _engines(self, ts: float, page: Page) -> None:
        for number in range(self.config.engines):
            read = page.engines[number] if page.engines else None
            up, name = read is not None, f"engine-{number}"
            last = ts if up else T0 + self.config.fault[0]
            self.deriver.see(TargetState(name, "vllm", "generator", up, ts, last, interval_seconds=self.config.page))
            if read is None:
                continue
            for metric, value in zip(ENGINE, read, strict=True):
                self.deriver.sample(ts, name, metric, (), value)
            self.deriver.sample(ts, name, "kv_cache_capacity_tokens", (), self.config.kv_tokens)

    def _census(self, ts: float, page: Page) -> None:
        told = {
            state: page.census.get(state, 0)
            for state in ("generating", "booting", "in_tool", "scoring", "waiting_group")
        }
        if not self.config.census:
            told = {"generating": sum(told.values()) - told["waiting_group"]}
        for state, value in told.items():
            labels: Labels = (("state", state),)
            self.deriver.sample(ts, "trainer", "in_flight_rollouts", labels, value)
        self.deriver.sample(ts, "trainer", "in_flight_capacity_rollouts", (), self.config.cap)

    def _row(self, row: Row, tick: float) -> None:
        hidden = _OF.get(self.missing, ())
        phases = self.missing == "in_flight"
        values = {
            (name, IN_FLIGHT if name == "in_flight_rollouts" else ()): value for name, value in row.values.items()
            if name not in hidden and not (phases and name.startswith("rollout_"))
        }  # fmt: skip
        for name in INSTANTS & row.values.keys() - set(hidden):
            # A gauge that is only reported with a step is a gauge of that moment, too (`server.ingest.readings`).
            labels = IN_FLIGHT if name == "in_flight_rollouts" else ()
            self.deriver.sample(T0 + row.end, "trainer", name, labels, row.values[name])
        newest = self.deriver.book.newest_of_all()
        if newest is None or T0 + row.end > newest.ts:
            self.deriver.step_met = T0 + tick
        said = self.deriver.step("trainer", 0, row.number, T0 + row.end, "trainer", values)
        self.answers.write(said, Batch(run="run"))
        if self.config.traced:
            self._traces(row)

    def _traces(self, row: Row) -> None:
        """Records of the first rollouts of every n-th batch, like TRL's traces: a sample, without the total number."""
        ts, version = T0 + row.end, row.number
        self.deriver.rollouts.publish(version, ts)
        if version % self.config.traced or self.missing == "zero":
            return
        size = self.config.group
        records = [
            Rollout(
                f"{version}/{number}-{place}", str(number), size, purpose="train", version_dispatched=begun,
                consumptions=(Consumption(version, ts),), reward=self._reward(dull, place), sampled=True,
            )
            for number, dull, begun in row.groups for place in range(size)
        ]  # fmt: skip
        for arrival in self.records.take(_TRAINER, records[: self.config.traces], ts).arrivals:
            self.deriver.rollout(arrival)

    def _reward(self, dull: bool, place: int) -> float:
        """The reward of a rollout; equal in a group without gradient, where all or none solve the task."""
        return float(self.config.easy >= 0.5) if dull else float(place % 2)


def ticks(config: Config) -> list[float]:
    """At most 200, on the 5 s grid."""
    every = max(TICK, TICK * -(-config.horizon // (TICK * MOST_TICKS)))
    return [every * n for n in range(1, int(config.horizon // every) + 1)]


def played(config: Config, sim: Sim, missing: str = "") -> list[Told]:
    return list(Feed(config, missing).play(sim.rows, sim.pages))
