"""`GET /metrics`: every fresh signal of every run, in Prometheus' text format.

Families are built anew for each scrape from the store's latest points: a signal that went stale or unknown
has no series, it never repeats its last value. The library writes the text (escaping, HELP, TYPE).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from server.api import PROMETHEUS_PREFIX as PREFIX
from server.query import Reader
from server.query.run_state import STATES as RUN_STATES
from server.query.types import SignalNow, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LIFECYCLES = ("starting", "running", "paused", "finished", "crashed")
SPINUP_PARTS = ("sandbox_spinup_bucket_total", "sandbox_spinup_sum_total", "sandbox_spinup_count_total")
STATES = ("ok", "watch", "critical", "unknown", "not_applicable")
# The API has the numbers of a finished run; repeated here they would be a flat line permanently.
FINISHED_SECONDS = 300.0
# A run without data for a day is left out: the page must not grow with the number of past runs.
FORGOTTEN_SECONDS = 86_400.0


class _Runs:
    """A prometheus_client collector over the reader."""

    def __init__(self, reader: Reader, version: str, own: Callable[[], Iterable[Metric]]) -> None:
        self._reader, self._version, self._own = reader, version, own

    def collect(self) -> Iterator[Metric]:
        oldest = self._reader.now() - FORGOTTEN_SECONDS
        runs = [run for run in self._reader.runs.all() if (run.last_ts or oldest) >= oldest]
        statuses = [self._reader.status(run.name) for run in runs]
        yield from self._signals(statuses)
        yield _per_run("run_info", "The run's framework and mode.", statuses, ("framework", "mode"), _info)
        yield _per_run("run_state", "1 for the run's lifecycle state.", statuses, ("state",), _lifecycle)
        text = "1 for the state of the run's data: what the dashboard's header shows."
        yield _per_run("run_data_state", text, statuses, ("state",), _data_state)
        text = "Share of the history that is read and derived, while the run catches up."
        yield _per_run("run_catch_up_ratio", text, statuses, (), _catch_up)
        yield _per_run("target_up", "1 when the target's last scrape succeeded.", statuses, ("target", "kind"), _up)
        yield _origins(statuses)
        ages = "Seconds since the data behind the signal."
        yield _per_run("signal_age_seconds", ages, statuses, ("signal",), _ages)
        yield _per_run("signal_state", "1 for the signal's state.", statuses, ("signal", "state"), _signal_states)
        names = ("alertname", "severity", "alertstate")
        yield _per_run("alerts", "Alerts of the run, by rule and state.", statuses, names, _alerts)
        text = "Duration of the target's newest scrape."
        yield _per_run("target_scrape_seconds", text, statuses, ("target", "kind"), _scrape_seconds)
        yield from self._own()
        build = GaugeMetricFamily(PREFIX + "build_info", "Rollscope's version.", labels=("version",))
        build.add_metric((self._version,), 1.0)
        yield build

    def _signals(self, statuses: Iterable[Status]) -> Iterator[Metric]:
        rows: dict[str, list[tuple[str, SignalNow]]] = defaultdict(list)
        for status in statuses:
            for signal in status.signals.values():
                if _shown(status, signal):
                    rows[signal.signal].append((status.run, signal))
        infos = self._reader.signals.infos
        yield from _spinups(rows)
        for name, found in rows.items():
            if name in SPINUP_PARTS:
                continue
            labels = sorted({label for _, signal in found for label in signal.labels})
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(PREFIX + name, infos[name].help, labels=("run", *labels))
            for run, signal in found:
                assert signal.value is not None
                family.add_metric((run, *(signal.labels.get(label, "") for label in labels)), signal.value)
            yield family


def _spinups(rows: Mapping[str, list[tuple[str, SignalNow]]]) -> Iterator[Metric]:
    """The histogram that is kept as three counters, each run's buckets in the order of their edges."""
    parts = {name: dict(_by_run(rows.get(name, []))) for name in SPINUP_PARTS}
    buckets, sums = parts["sandbox_spinup_bucket_total"], parts["sandbox_spinup_sum_total"]
    if not buckets:
        return
    text = "Seconds from requested to ready of the run's sandboxes."
    family = HistogramMetricFamily(PREFIX + "sandbox_spinup_seconds", text, labels=("run",))
    for run, found in buckets.items():
        edges = sorted(
            ((signal.labels["le"], signal.value or 0.0) for signal in found), key=lambda pair: float(pair[0])
        )
        total = sums[run][0].value if sums.get(run) else None
        family.add_metric((run,), edges, sum_value=total)
    yield family


def _edge(bucket: tuple[str, float]) -> float:
    return float(bucket[0])


def _by_run(found: list[tuple[str, SignalNow]]) -> Iterator[tuple[str, list[SignalNow]]]:
    for run in dict.fromkeys(name for name, _ in found):
        yield run, [signal for name, signal in found if name == run]


def _shown(status: Status, signal: SignalNow) -> bool:
    if signal.value is None or signal.signal.endswith("_total"):
        return signal.value is not None
    if status.state.name == "catching_up":
        # True in the past, and Prometheus would date it now.
        return False
    return status.lifecycle != "finished" or (signal.age_seconds or 0.0) <= FINISHED_SECONDS


def _info(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    yield (status.framework, status.mode), 1.0


def _lifecycle(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for state in LIFECYCLES:
        yield (state,), float(status.lifecycle == state)


def _data_state(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for state in RUN_STATES:
        yield (state,), float(status.state.name == state)


def _catch_up(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    if status.state.progress is not None:
        yield (), status.state.progress


def _up(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for target in status.trust:
        yield (target.target, target.kind), float(target.up)


def _scrape_seconds(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for target in status.trust:
        yield (target.target, target.kind), target.scrape_seconds


def _origins(statuses: Iterable[Status]) -> Metric:
    """The target's own labels, with a prefix that separates them from ours, as in kube-state-metrics."""
    family = GaugeMetricFamily(PREFIX + "target_info", "The list that names the target, with its job and labels there.")
    for status in statuses:
        for target in status.trust:
            if target.source:
                labels = {"run": status.run, "target": target.target, "source": target.source, "job": target.job}
                own = {f"label_{name}": value for name, value in target.labels.items()}
                family.add_sample(PREFIX + "target_info", {**labels, **own}, 1.0)
    return family


def _alerts(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    keys = [(one.name, one.severity, one.state) for one in status.alerts]
    for key in dict.fromkeys(keys):
        yield key, float(keys.count(key))


def _by_signal(status: Status) -> dict[str, SignalNow]:
    """One row per signal: of several labelled series the worst speaks, then the oldest."""
    worst: dict[str, SignalNow] = {}
    for signal in status.signals.values():
        if signal.signal.endswith("_total"):
            continue
        before = worst.get(signal.signal)
        if before is None or STATES.index(signal.state) > STATES.index(before.state):
            worst[signal.signal] = signal
    return worst


def _ages(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, signal in _by_signal(status).items():
        if signal.age_seconds is not None and signal.value is not None:
            yield (name,), signal.age_seconds


def _signal_states(status: Status) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, signal in _by_signal(status).items():
        for state in STATES:
            yield (name, state), float(signal.state == state)


def _per_run(name: str, text: str, statuses: Iterable[Status], labels: tuple[str, ...], rows) -> Metric:  # type: ignore[no-untyped-def]
    family = GaugeMetricFamily(PREFIX + name, text, labels=("run", *labels))
    for status in statuses:
        for values, number in rows(status):
            family.add_metric((status.run, *values), number)
    return family


def render(reader: Reader, version: str, own: Callable[[], Iterable[Metric]] = tuple) -> bytes:
    """The whole page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(reader, version, own))
    return generate_latest(registry)
