"""From a reading to a batch: stamps, series ids, incarnations, target health.

One `Ingest` per run. It decides nothing about meaning: what a number is was said by the collector, what
follows from it is said by the signals.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import collectors
from collectors.catalog import METRICS
from collectors.model import Histogram, Labels, Reading, Sample, Sandbox, ScrapeError, Target
from server.config.facts import trusted_facts
from server.ingest.histograms import HistogramThrottle
from server.ingest.reported_restarts import ReportedRestarts
from server.ingest.rollouts.feed import RolloutFeed
from server.ingest.sandboxes import REMEMBERED_SECONDS, SandboxArrival, SandboxIngest
from server.ingest.series_ids import SeriesIdCache
from server.ingest.updates import Arrivals as Arrivals
from server.ingest.updates import SampleArrival as SampleArrival
from server.ingest.updates import StepArrival as StepArrival
from server.ingest.validation import ahead, complaint, values_only, without_implausible
from server.signals.model import TargetHealth
from server.signals.observed_histograms import WINDOWED
from server.store import Store
from server.store.types import GONE, IMPLAUSIBLE, Batch, Origin, SandboxRow, SeriesKey, StepStamp, TargetRow

# Our own per-target series, in Prometheus' words.
HEALTH: list[tuple[str, Labels]] = [("up", ()), ("scrape_duration_seconds", ()), ("scrape_samples_scraped", ())]
# Unmapped keys are shown, not hoarded: a target that invents keys without end must not fill the store.
UNMAPPED_KEPT = 200
# Name of the source of pushed sandboxes, where a target's name would be.
PUSHED, OVERLAP_MS = "pushed", 10_000

# Two logs of one run date a step by this much apart (a flush, a clock read twice); no restart is over as soon.
SAME_STEP_SECONDS = 5.0
# A target that fell this many steps behind another that tells the same gauge has gone quiet.
QUIET_STEPS = 3


@dataclass(frozen=True, slots=True)
class _Slot:
    """How far an axis was told: the trainer's life, the step and its time."""

    incarnation: int
    number: int
    ts: float


class Ingest:
    """Turns readings of one run's targets into batches. Not thread-safe: one run, one loop.

    Args:
        complaint: target name -> what else speaks against its numbers, or "".
    """

    def __init__(
        self, store: Store, run: str, since: float | None = None, complaint: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._store, self._complaint = store, complaint
        self._known, self._minutes = SeriesIdCache(store, run), HistogramThrottle()
        self.run = run
        self.incarnation = store.incarnation(run)
        newest = store.steps(run, last=1, incarnation=self.incarnation)
        # Where each axis stood when we began, and where each target has come to on it since.
        self._base = {row.axis: _Slot(self.incarnation, row.step, row.ts / 1000) for row in newest}
        self._places: dict[tuple[str, str], _Slot] = {}
        self._tellers: dict[tuple[str, str, Labels], tuple[str, int]] = {}
        self._health: dict[str, TargetRow] = {row.name: row for _, row in store.targets(run)}
        # Of targets that a list named; see `server.targets.discovery`.
        self.origins: dict[str, Origin] = {}
        # What is known of the run: a mode that a source assumes does not count beside one that is told.
        self.facts = store.facts(run)
        own = str(self.facts.get("run_name", run))
        row = store.run(run) or store.ensure_run(run)
        # Pushed rows are looked for from ``since`` on (default: the watermark); `met` tells what is no news among them.
        self._pushed = _ms(since) if since is not None else row.watermark or 0
        self._seen: dict[tuple[str, str], SandboxRow] = {}
        self._rollouts = RolloutFeed(store, run, self.facts, self.incarnation)
        self._told = ReportedRestarts(store, run, self._rollouts.lives)
        last = self._rollouts.lives.last
        self._life_start = -math.inf if last is None else last
        known = store.sandboxes.recent(run, max(0, (row.watermark or 0) - round(REMEMBERED_SECONDS * 1000)))
        self._sandboxes = SandboxIngest(known, {run, own}, row.first_ts / 1000 if row.first_ts is not None else None)

    def reading(self, target: Target, reading: Reading, now: float, seconds: float) -> tuple[Batch, Arrivals]:
        """A successful scrape. `now` stamps what has no time of its own; `seconds` is how long it took."""
        facts = trusted_facts(reading.facts, self.facts)
        self.facts.update(facts)
        batch, arrivals = Batch(run=self.run, facts=dict(facts)), Arrivals(facts=facts)
        reading = without_implausible(reading, now)
        self._samples(target, [s for s in reading.samples if s.step is None], now, batch, arrivals)
        self._steps(target, [s for s in reading.samples if s.step is not None], now, batch, arrivals)
        self._histograms(target, reading.histograms, now, batch, arrivals)
        batch.events += [(_ms(event.ts if event.ts is not None else now), event) for event in reading.events]
        if reading.cursor is not None:
            batch.cursors[target.name] = json.dumps(reading.cursor)
        if "run_name" in reading.facts:
            self._sandboxes.keys.add(str(reading.facts["run_name"]))
        if reading.sandboxes or reading.listed:
            self.sandboxes(target, reading.sandboxes, reading.listed, now, batch, arrivals)
        self._rollouts.take(target, reading, now, batch, arrivals)
        arrivals.health.append(health(self._health_ok(target, reading, now, seconds, batch)))
        return batch, arrivals

    def records(self, target: Target, reading: Reading, now: float) -> tuple[Batch, Arrivals]:
        """Rollouts and events by themselves, pushed: nobody's health depends on them.

        A restart begins a life of the trainer at its time, once, whenever it is told.
        """
        batch, arrivals = Batch(run=self.run), Arrivals()
        reading = without_implausible(reading, now)
        batch.events += [(_ms(event.ts if event.ts is not None else now), event) for event in reading.events]
        if begun := self._told.fresh(reading.events, now):
            for ts in begun:
                self._begin_life(ts, batch)
            self._rollouts.divide(target, begun[0], now, batch, arrivals)
        self._rollouts.take(target, reading, now, batch, arrivals)
        return batch, arrivals

    def sandboxes(
        self, target: Target, records: Iterable[Sandbox], listed: Iterable[str], now: float, batch: Batch,
        arrivals: Arrivals,
    ) -> None:  # fmt: skip
        """Records of sandboxes, from a provider or pushed: changes go into the batch and on to the driver."""
        if key := target.option("run_key"):
            self._sandboxes.keys.add(key)
        records = tuple(records)
        # A provider lists old ends again and again, and every restart forgets them.
        self._sandboxes.recall(self._store.sandboxes.get(self.run, self._sandboxes.unknown(records)))
        changed = self._sandboxes.take(target, records, tuple(listed), self._living(), now)
        batch.sandboxes += [arrival.row for arrival in changed]
        arrivals.sandboxes += changed
        if not reads_files(target.collector):
            arrivals.heard[target.name] = (now, max(15.0, 3 * target.interval_seconds))

    def pushed(self, now: float) -> Arrivals:
        """What was pushed into the store since the last call, by any process: the same changes, from its rows."""
        arrivals, before = Arrivals(), self._pushed
        if self._seen:
            arrivals.heard[PUSHED] = (now, math.inf)
        # A little overlap: rows of a transaction that was slower than a tick are met, and again says nothing new.
        for row in self._store.sandboxes.heard_since(self.run, PUSHED, before - OVERLAP_MS):
            if self._seen.get((row.record.provider, row.record.id)) == row:
                continue
            # Stamped before it was written: one that took seconds to commit is older than the last look.
            fresh = before - OVERLAP_MS
            known = self._seen.get((row.record.provider, row.record.id))
            self._seen[(row.record.provider, row.record.id)] = row
            arrivals.sandboxes.append(
                SandboxArrival(
                    now, row,
                    created=known is None and row.first_seen > fresh,
                    became_ready=(row.ready_seen or 0) > fresh and (known is None or known.ready_seen is None),
                    failed=(row.failed_seen or 0) > fresh and (known is None or known.failed_seen is None),
                )
            )  # fmt: skip
            arrivals.heard[PUSHED] = (now, math.inf)
        self._pushed = _ms(now)
        # What was last heard before the overlap cannot come again unless it changes, and then its row says what is new.
        old = self._pushed - 2 * OVERLAP_MS
        self._seen = {key: row for key, row in self._seen.items() if row.seen_at >= old}
        return arrivals

    def renewed(self) -> "Ingest":
        """Another of the same run, of what the store holds: this one counted what was never stored."""
        found = Ingest(self._store, self.run, complaint=self._complaint)
        found._pushed, found._seen, found.origins = self._pushed, self._seen, self.origins
        return found

    def met(self, rows: Iterable[SandboxRow]) -> None:
        """Pushed rows that the driver has read itself: `pushed` tells only what they become."""
        self._seen.update({(row.record.provider, row.record.id): row for row in rows if row.target == PUSHED})

    def settled(self, target: str, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        """Pushed samples in the order of their steps, without those of a step that say again what is stored.

        Who pushes repeats what was not acknowledged, and sends a step in parts. That is no restart: further values of
        a step that is there, and a step that was overtaken, keep to its life. Other values for the same are one.
        """
        steps: dict[tuple[str, int], list[Sample]] = {}
        found = []
        for sample in samples:
            if sample.step is None:
                found.append(sample)
            else:
                steps.setdefault((sample.axis, sample.step), []).append(sample)
        for (axis, number), values in sorted(steps.items()):
            found += self._settled(target, axis, number, values)
        return tuple(found)

    def _settled(self, target: str, axis: str, number: int, values: list[Sample]) -> list[Sample]:
        place = self._places.get((target, axis)) or self._base.get(axis)
        if place is None or number >= place.number:
            return values
        stored = self._store.steps(self.run, axis, last=1, before=number + 1, incarnation=self.incarnation)
        if not stored:
            return values  # before everything of this life: it began anew
        if stored[0].step < number:
            return [replace(one, ts=place.ts) if one.ts is None else one for one in values]
        known = stored[0].values
        if any(known.get((one.metric, one.labels), one.value) != one.value for one in values):
            return values
        ts = stored[0].ts / 1000
        return [replace(one, ts=ts) for one in values if (one.metric, one.labels) not in known]

    def _living(self) -> set[str]:
        """Names under which runs that are not over may be known to a provider."""
        alive = [row for row in self._store.runs() if row.lifecycle not in ("finished", "crashed")]
        return {row.name for row in alive} | {str(row.facts["run_name"]) for row in alive if "run_name" in row.facts}

    def failure(self, target: Target, error: ScrapeError, now: float, seconds: float) -> tuple[Batch, Arrivals]:
        """A failed scrape: `up` 0 with the cause; everything known so far stays."""
        batch = Batch(run=self.run, histograms=self._minutes.rest(target.name))
        before = self._health.get(target.name)
        row = TargetRow(
            name=target.name, collector=target.collector, actor=target.actor, up=False, last_ts=_ms(now),
            last_ok_ts=before.last_ok_ts if before else None, error=str(error), error_kind=error.kind,
            scrape_seconds=seconds, interval_seconds=target.interval_seconds,
            unmapped=before.unmapped if before else {}, dropped=before.dropped if before else 0,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return batch, Arrivals(health=[health(row)])

    def heard(self, target: Target, last: float | None, now: float) -> tuple[Batch, Arrivals]:
        """A target that calls us and is in time; ``last``: when it was heard (None: not yet, and not yet due)."""
        batch, before = Batch(run=self.run), self._health.get(target.name)
        row = TargetRow(
            name=target.name, collector=target.collector, actor=target.actor, up=True, last_ts=_ms(now),
            last_ok_ts=_ms(last) if last is not None else None, error="" if last is not None else "not heard yet",
            interval_seconds=target.interval_seconds, unmapped=before.unmapped if before else {},
            dropped=before.dropped if before else 0,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return batch, Arrivals(health=[health(row)])

    def gone(self, names: Iterable[str], now: float) -> tuple[Batch, Arrivals]:
        """Targets that no list names any more; nothing of one that was never read."""
        batch, arrivals = Batch(self.run), Arrivals()
        for before in filter(None, map(self._health.get, names)):
            told = before.origin and f"{before.origin.source} does not list it any more"
            said = told or "it has another name by now, for it said what it is"
            row = replace(before, up=False, last_ts=_ms(now), error=said, error_kind=GONE)
            batch.targets.append(self.noted(row))
            batch.histograms += self._minutes.rest(row.name)
            arrivals.health.append(health(row))
        return batch, arrivals

    def noted(self, row: TargetRow) -> TargetRow:
        """Keep in mind a row that is made elsewhere."""
        self._health[row.name] = row
        return row

    # ---- parts

    def _histograms(
        self, target: Target, items: Iterable[Histogram], now: float, batch: Batch, arrivals: Arrivals
    ) -> None:
        items, name = list(items), target.name
        ids = self._known.numbers(name, [(item.metric, item.labels) for item in items])
        for series, item in zip(ids, items, strict=True):
            ts = item.ts if item.ts is not None else now
            # Who is asked tells it again; who pushes does not.
            row = (series, _ms(ts), item)
            batch.histograms += self._minutes.take(name, *row) if target.url else [row]
            if item.metric in WINDOWED:
                arrivals.samples.append((ts, name, item.metric, item.labels, item))

    def rest(self) -> Batch:
        """What is held back of histograms, when nothing more will be read."""
        rows = [row for name in self._minutes.targets for row in self._minutes.rest(name)]
        return Batch(run=self.run, histograms=rows)

    def _samples(self, target: Target, samples: Iterable[Sample], now: float, batch: Batch, arrivals: Arrivals) -> None:
        samples, name, stamp = list(samples), target.name, _ms(now)
        ids = self._known.numbers(name, [(s.metric, s.labels) for s in samples])
        pairs = zip(ids, samples, strict=True)
        batch.samples += [(series, stamp if s.ts is None else _ms(s.ts), s.value) for series, s in pairs]
        arrivals.samples += [(now if s.ts is None else s.ts, name, s.metric, s.labels, s.value) for s in samples]

    def _steps(self, target: Target, samples: list[Sample], now: float, batch: Batch, arrivals: Arrivals) -> None:
        rows: dict[tuple[str, int, int], StepArrival] = {}
        ids, place, row = self._step_ids(target.name, samples), None, None
        for sample in samples:
            ts = sample.ts if sample.ts is not None else now
            # A row's samples come one after the other: whose life it is of is asked once.
            if row is None or place != (sample.axis, sample.step, ts):
                place = (sample.axis, sample.step, ts)
                row = self._row(target.name, sample.axis, int(sample.step or 0), ts, rows, batch)
            row.values[(sample.metric, sample.labels)] = sample.value  # type: ignore[index]
            series = ids[(sample.metric, sample.labels, sample.axis)]
            batch.step_values.append((series, row.incarnation, row.number, sample.value))
        for row in rows.values():
            batch.steps.append(StepStamp(row.axis, row.incarnation, row.number, _ms(row.ts)))
        arrivals.steps += rows.values()
        # A gauge that is only reported with a step (TRL async's queue) is still a gauge of that moment.
        moments = [s for s in samples if METRICS[s.metric].reduction == "instant" and self._tells(target.name, s)]
        self._samples(target, moments, now, batch, arrivals)

    def _step_ids(self, target: str, samples: list[Sample]) -> dict[tuple[str, Labels, str], int]:
        keys = list(dict.fromkeys([(s.metric, s.labels, s.axis) for s in samples]))
        return dict(zip(keys, self._known.intern([SeriesKey(target, *key) for key in keys]), strict=True))

    def _row(
        self, target: str, axis: str, number: int, ts: float, rows: dict[tuple[str, int, int], StepArrival],
        batch: Batch,
    ) -> StepArrival:  # fmt: skip
        key = (axis, self._incarnation_of(target, axis, number, ts, batch), number)
        row = rows.get(key)
        if row is None:
            row = rows[key] = StepArrival(*key, ts, target, {})
        return row

    def _incarnation_of(self, target: str, axis: str, number: int, ts: float, batch: Batch) -> int:
        """The trainer's life a row belongs to: a step that goes back while time goes on begins a new one.

        A step that goes back *in time* too is an old row read again (a rotated or copied file), not a restart.
        All axes rewind at one restart, in each log at its own row: only the first begins a life, the others join it.
        One run may be read from several logs, which are not equally far: each is held against itself.
        """
        own = self._places.get((target, axis))
        before = own or self._base.get(axis)
        if before is None:
            # Read after its life had ended: another axis' chunk, or another log, came first.
            life = self.incarnation - 1 if ts < self._life_start else self.incarnation
        elif number < before.number and ts <= before.ts + (0.0 if own else SAME_STEP_SECONDS):
            return before.incarnation
        elif number < before.number:
            if before.incarnation == self.incarnation:
                self._went_back(f"{axis} step went back from {before.number} to {number}", ts, batch)
            life = self.incarnation
        else:
            life = before.incarnation if ts < self._life_start else self.incarnation
        self._places[(target, axis)] = _Slot(life, number, ts)
        return life

    def _went_back(self, detail: str, ts: float, batch: Batch) -> None:
        self._begin_life(ts, batch)
        batch.events.append((_ms(ts), self._told.own(self.incarnation, ts, detail)))

    def _begin_life(self, ts: float, batch: Batch) -> None:
        self.incarnation = self._rollouts.lives.begin(ts)
        self._life_start = max(self._life_start, ts)
        batch.lives.append((self.incarnation, _ms(ts)))

    def _tells(self, target: str, sample: Sample) -> bool:
        """Does this target's word count for a gauge that came with a step? Of several logs of one run, one's does.

        Gauges of different targets are added up (engines), and a queue told by four logs is one queue.
        """
        key, step = (sample.axis, sample.metric, sample.labels), int(sample.step or 0)
        teller, told = self._tellers.get(key, (target, step))
        if teller != target and step - told < QUIET_STEPS:
            return False
        self._tellers[key] = (target, step)
        return True

    def _health_ok(self, target: Target, reading: Reading, now: float, seconds: float, batch: Batch) -> TargetRow:
        before = self._health.get(target.name)
        unmapped = dict(before.unmapped) if before and reading.cursor is not None else {}
        for key, count in reading.unmapped.items():
            if key in unmapped or len(unmapped) < UNMAPPED_KEPT:
                unmapped[key] = unmapped.get(key, 0) + count
        said, other = complaint(reading), ahead(reading, now) or self._complaint(target.name)
        kind = IMPLAUSIBLE if said and not other and values_only(reading) else ""
        row = TargetRow(
            name=target.name, collector=target.collector, actor=target.actor, up=True, last_ts=_ms(now),
            last_ok_ts=_ms(now), error=said or other, error_kind=kind, scrape_seconds=seconds,
            samples=reading.samples_scraped, dropped=(before.dropped if before else 0) + reading.dropped,
            interval_seconds=target.interval_seconds, unmapped=unmapped,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return row

    def _note_health(self, target: Target, row: TargetRow, batch: Batch, now: float) -> None:
        batch.targets.append(self.noted(replace(row, origin=self.origins.get(target.name))))
        values = (float(row.up), row.scrape_seconds, float(row.samples))
        for series, value in zip(self._known.numbers(target.name, HEALTH), values, strict=True):
            batch.samples.append((series, _ms(now), value))


def reads_files(collector: str) -> bool:
    """Does it read what a run writes? Files tell what was, often only when it is over: none is no zero of live ones."""
    known = collectors.load().get(collector)
    return known is not None and known.tail is not None


def health(row: TargetRow) -> TargetHealth:
    """A stored row as signals see it.

    An answer with a complaint is incomplete, unless only values were dropped that their unit rules out: the others are
    whole.
    """
    ok = row.last_ok_ts / 1000 if row.last_ok_ts is not None else None
    complete = row.up and (not row.error or row.error_kind == IMPLAUSIBLE)
    return TargetHealth(
        row.name, row.collector, row.actor, row.up, row.last_ts / 1000, ok, row.interval_seconds, complete, row.gone,
        row.error,
    )  # fmt: skip


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
