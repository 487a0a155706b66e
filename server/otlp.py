"""An OTLP metrics request -> what is taken of it, for each run and target, and what is refused and why. Pure.

Counters and histograms of several processes (rollout workers with one SDK each) are one metric of the run: they are
handed on as growth, by process, and added up where they are collected. Gauges of one request are added up where
their rule leaves labels away (a point per container), else the last wins.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from collectors.catalog import METRICS, Metric
from collectors.model import Histogram, Labels, Reading, Sample
from server import push_names
from server.otlp_names import QUOTAS, RULES, Rule
from server.push_body import Body, Grown

PROTOBUF, JSON = "application/x-protobuf", "application/json"
POINTS = 50_000
# JSON is read in one call, during which no other thread runs: what it may hold is a tenth of a second.
JSON_BYTES = 4 << 20
ATTRIBUTE_LENGTH = 1024
RUN, TARGET = "rollscope.run", "rollscope.target"
NO_RUN = (
    "which run is this? Set the resource attribute rollscope.run (OTEL_RESOURCE_ATTRIBUTES=rollscope.run=NAME), the "
    "header x-rollscope-run or ?run=NAME; service.name is not taken for one"
)
_DELTA = 1
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")

Key = tuple[str, str]
"""(run, target)."""


@dataclass(slots=True)
class Part:
    """What was found for one target."""

    samples: dict[tuple[str, Labels, int | None, str], Sample] = field(default_factory=dict)
    grown: list[Grown] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    points: int = 0

    def body(self) -> Body:
        samples = [*self.samples.values(), *self._quotas()]
        reading = Reading(samples=tuple(samples), unmapped=self.unmapped, samples_scraped=self.points)
        return Body(reading, tuple(self.grown))

    def _quotas(self) -> Iterator[Sample]:
        for resource, found in self.quotas.items():
            labels = (("resource", resource),)
            if "total" in found:
                yield Sample("sandbox_quota_limit", found["total"], labels)
            if "total" in found and "available" in found:
                yield Sample("sandbox_quota_used", found["total"] - found["available"], labels)


@dataclass(slots=True)
class Read:
    """Outcome of a request. ``refused``: points not taken; ``words``: why, each reason once."""

    parts: dict[Key, Part] = field(default_factory=lambda: defaultdict(Part))
    refused: int = 0
    words: list[str] = field(default_factory=list)
    runless: int = 0

    def refuse(self, why: str, count: int = 1) -> None:
        self.refused += count
        if why not in self.words and len(self.words) < 20:
            self.words.append(why)


def decode(body: bytes, kind: str) -> Any:
    """The request message of a body in `PROTOBUF` or `JSON`.

    Raises:
        ValueError: not such a message, or too long a one in JSON.
    """
    if kind == JSON and len(body) > JSON_BYTES:
        raise ValueError(f"OTLP as JSON may hold {JSON_BYTES} bytes: send protobuf")
    request = ExportMetricsServiceRequest()
    try:
        if kind == PROTOBUF:
            request.ParseFromString(body)
        else:
            json_format.ParseDict(json.loads(body), request, ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(f"the body is no OTLP metrics request: {type(error).__name__}") from None
    return request


def answer(read: Read, kind: str) -> bytes:
    """The response message: a partial success where something was refused."""
    response = ExportMetricsServiceResponse()
    if read.refused:
        response.partial_success.rejected_data_points = read.refused
        response.partial_success.error_message = "; ".join(read.words)[:4000]
    found: bytes = response.SerializeToString() if kind == PROTOBUF else json_format.MessageToJson(response).encode()
    return found


def read(request: Any, run: str, now: float) -> Read:
    """Everything in a request. ``run``: of resources that name none ("": there is no such default).

    Raises:
        ValueError: more points than are taken at once.
    """
    found = Read()
    total = 0
    for resource in request.resource_metrics:
        attributes = _attributes(resource.resource.attributes)
        metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
        count = sum(_count(metric) for metric in metrics)
        total += count
        if total > POINTS:
            raise ValueError(f"at most {POINTS} points at once")
        name = attributes.get(RUN) or run
        if not name:
            found.runless += count
            found.refuse(NO_RUN, count)
            continue
        key = (name, attributes.get(TARGET) or attributes.get("service.name") or "otlp")
        _resource(found, found.parts[key], name, attributes, metrics, now)
    return found


def _count(metric: Any) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def _resource(
    found: Read, part: Part, run: str, attributes: Mapping[str, str], metrics: Iterable[Any], now: float
) -> None:
    metrics = list(metrics)
    best: dict[str, int] = {}
    for metric in metrics:
        if (rule := RULES.get(metric.name)) is not None:
            best[rule.metric] = min(rule.rank, best.get(rule.metric, rule.rank))
    process = json.dumps(sorted(attributes.items()))
    # Sums of this request's gauges begin anew with every resource.
    summed: set[tuple[str, Labels]] = set()
    for metric in metrics:
        part.points += _count(metric)
        one = _Metric(found, part, run, process, metric, now, summed)
        rule = RULES.get(metric.name)
        if metric.name in QUOTAS:
            one.quota(*QUOTAS[metric.name])
        elif rule is not None:
            if rule.rank == best[rule.metric]:
                one.mapped(rule)
        elif (canonical := _canonical(metric.name)) is not None:
            one.plain(canonical)
        elif metric.name in part.unmapped or len(part.unmapped) < 200:
            part.unmapped[metric.name[:200]] = part.unmapped.get(metric.name[:200], 0) + 1


def _canonical(name: str) -> Metric | None:
    """OpenTelemetry writes dots, and leaves `_total` away."""
    name = name.replace(".", "_")
    return push_names.find(name) or push_names.find(f"{name}_total")


@dataclass(slots=True)
class _Metric:
    """One metric of a request on its way into a part."""

    found: Read
    part: Part
    run: str
    process: str
    metric: Any
    now: float
    summed: set[tuple[str, Labels]]

    def mapped(self, rule: Rule) -> None:
        """A name of another system: its labels are the rule's."""
        for point, attributes in self._points():
            labels = rule.labels(attributes)
            failed = bool(rule.failures) and attributes.get("status") == "error"
            if failed and self._kind() == "histogram":
                self._take(METRICS[rule.failures], (("cause", "unknown"),), point, attributes, value=float(point.count))
            else:
                self._take(METRICS[rule.metric], labels, point, attributes, rule.factor, adds=True)

    def plain(self, metric: Metric) -> None:
        """A canonical name: its attributes are its labels."""
        factor = 1000.0 if self.metric.unit == "ms" and metric.unit == "seconds" else 1.0
        for point, attributes in self._points():
            try:
                labels = push_names.labels_of(tuple(attributes.items()), self.run)
            except ValueError as error:
                self.found.refuse(f"{self.metric.name}: {error}")
                continue
            self._take(metric, labels, point, attributes, factor)

    def quota(self, resource: str, part: str) -> None:
        for point, _ in self._points():
            self.part.quotas[resource][part] = _number(point)

    def _kind(self) -> str:
        return self.metric.WhichOneof("data") or ""

    def _points(self) -> Iterator[tuple[Any, dict[str, str]]]:
        kind = self._kind()
        if kind in ("exponential_histogram", "summary"):
            words = "exponential histograms have" if kind.startswith("exp") else "a summary has"
            why = f"{self.metric.name}: {words} no buckets to add up: configure explicit buckets"
            self.found.refuse(why, _count(self.metric))
        elif kind:
            for point in getattr(self.metric, kind).data_points:
                if not point.flags & 1:  # "no recorded value": a series that has ended
                    yield point, _attributes(point.attributes)

    def _take(
        self, metric: Metric, labels: Labels, point: Any, attributes: Mapping[str, str], factor: float = 1.0, *,
        value: float | None = None, adds: bool = False,
    ) -> None:  # fmt: skip
        ts = point.time_unix_nano / 1e9 or None
        try:
            if self._kind() == "histogram" and value is None:
                self._grow(_histogram(metric, point, labels, factor, ts, self.now), point, attributes)
            elif metric.kind == "counter":
                taken = _number(point) / factor if value is None else value
                sample = push_names.sample(metric, taken, labels, ts, None, "", self.now)
                self._grow(sample, point, attributes)
            else:
                self._gauge(metric, labels, point, attributes, factor, ts, adds)
        except ValueError as error:
            self.found.refuse(f"{self.metric.name}: {error}")

    def _grow(self, value: Sample | Histogram, point: Any, attributes: Mapping[str, str]) -> None:
        data = getattr(self.metric, self._kind())
        delta = getattr(data, "aggregation_temporality", 0) == _DELTA
        text = json.dumps([self.process, self.metric.name, sorted(attributes.items())])
        stream = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
        self.part.grown.append(Grown(stream, delta, point.start_time_unix_nano / 1e9, value))

    def _gauge(
        self, metric: Metric, labels: Labels, point: Any, attributes: Mapping[str, str], factor: float,
        ts: float | None, adds: bool,
    ) -> None:  # fmt: skip
        if self._kind() == "sum" and self.metric.sum.aggregation_temporality == _DELTA:
            raise ValueError(f"{metric.name} is a value of the moment: a difference says nothing of it")
        step = push_names.step_of(attributes["step"]) if "step" in attributes else None
        axis = push_names.axis_of(attributes.get("axis", "trainer"))
        sample = push_names.sample(metric, _number(point) / factor, labels, ts, step, axis, self.now)
        key = (metric.name, labels, sample.step, sample.axis)
        if adds and key[:2] in self.summed:
            sample = Sample(metric.name, sample.value + self.part.samples[key].value, labels, ts)
        self.summed.add(key[:2])
        self.part.samples[key] = sample


def _histogram(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    if metric.kind != "histogram":
        raise ValueError(f"{metric.name} is a {metric.kind}, not a histogram")
    counts, total = [], 0.0
    for count in point.bucket_counts:
        total += count
        counts.append(total)
    if not counts:
        raise ValueError("a histogram without buckets: configure explicit ones")
    edges = [bound / factor for bound in point.explicit_bounds]
    return push_names.histogram(metric, edges, counts, point.sum / factor, labels, ts, now)


def _number(point: Any) -> float:
    return float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)


def _attributes(pairs: Iterable[Any]) -> dict[str, str]:
    """Attributes of plain values, as text; lists and maps are no labels."""
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            value = getattr(pair.value, kind)
            text = str(value).lower() if kind == "bool_value" else str(value)
            found[pair.key[:ATTRIBUTE_LENGTH]] = text[:ATTRIBUTE_LENGTH]
    return found
