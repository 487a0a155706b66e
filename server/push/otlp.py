"""Converts an OTLP metrics request to readings per run and target; reports refused points with reasons. Pure.

Counters and histograms of several processes (rollout workers with one SDK each) are one metric of the run. They are
passed on as increases per process, and added up in the collecting process. Gauges of one request are added up if their
rule drops labels (a point per container); otherwise the last one wins.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from collectors.catalog import METRICS, Metric
from collectors.model import Histogram, Labels, Reading, Sample
from collectors.otlp_names import QUOTAS, RULES, Maps, Rule, factor_of, replica, vllm_rule
from server.push import metrics as push_metrics
from server.push.inbox import Body, Grown

# ---- histograms
# Converts OTLP histogram points to cumulative buckets.

# Lowest edge, as a power of two in the sender's unit: 61 microseconds if the unit is seconds.
LOW = -14
# Highest edge, as a power of two: three days if the unit is milliseconds.
HIGH = 28
# Scales of the fixed edges: a quarter of an octave (19 %), or an octave if the point is coarser. Fixed, because an SDK
# changes scale and offset with its values, and only histograms with equal edges can be added up.
SCALES = (2, 0)
EDGES = {scale: tuple(2.0 ** (n / (1 << scale)) for n in range(LOW << scale, (HIGH << scale) + 1)) for scale in SCALES}
# Most buckets of a point. SDKs have 160; a body of 16 MB could contain millions.
BUCKETS = 5_000


def explicit(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """Converts a point with explicit bounds. Values are divided by ``factor`` to get the metric's unit.

    Raises:
        ValueError: why the point is refused.
    """
    _check(metric, point)
    if len(point.bucket_counts) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    if not point.explicit_bounds:
        raise ValueError("a histogram without buckets: configure explicit ones")
    counts = [float(count) for count in accumulate(point.bucket_counts)]
    return _histogram(metric, point, point.explicit_bounds, counts, labels, factor, ts, now)


def exponential(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """Converts an exponential point to `EDGES`; values up to 2^LOW, zero and negative ones go to the first bucket.

    Raises:
        ValueError: why the point is refused.
    """
    _check(metric, point)
    scale = next((candidate for candidate in SCALES if candidate <= point.scale), None)
    if scale is None:
        raise ValueError("an exponential histogram with buckets wider than powers of two: raise its max_size")
    if point.zero_threshold > EDGES[scale][0]:
        raise ValueError(f"an exponential histogram whose zero threshold is above 2^{LOW}")
    if max(len(point.positive.bucket_counts), len(point.negative.bucket_counts)) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    counts = [float(count) for count in accumulate(_rebucketed(point, scale))]
    return _histogram(metric, point, EDGES[scale], counts, labels, factor, ts, now)


def _rebucketed(point: Any, scale: int) -> list[int]:
    """Returns counts per bucket of `EDGES`, one more than edges."""
    last = len(EDGES[scale])
    rebucketed = [0] * (last + 1)
    rebucketed[0] = point.zero_count + sum(point.negative.bucket_counts)
    for index, count in enumerate(point.positive.bucket_counts, point.positive.offset):
        upper = (index >> (point.scale - scale)) + 1 - (LOW << scale)
        rebucketed[min(max(upper, 0), last)] += count
    return rebucketed


def _check(metric: Metric, point: Any) -> None:
    if metric.kind != "histogram":
        raise ValueError(f"{metric.name} is a {metric.kind}, not a histogram")
    if not point.HasField("sum"):
        raise ValueError("a histogram without a sum: its mean would be unknown")
    if not isfinite(point.sum):
        raise ValueError("the histogram's sum is not a finite number")


def _histogram(
    metric: Metric, point: Any, edges: Sequence[float], counts: Sequence[float], labels: Labels, factor: float,
    ts: float | None, now: float,
) -> Histogram:  # fmt: skip
    histogram = push_metrics.histogram(
        metric, [edge / factor for edge in edges], counts, point.sum / factor, labels, ts, now
    )
    if counts[-1] != point.count:
        raise ValueError(f"its buckets hold {counts[-1]:.0f} observations, its count is {point.count}")
    return histogram


PROTOBUF, JSON = "application/x-protobuf", "application/json"
# Most points of one request.
POINTS = 50_000
# Largest JSON body, bytes (a tenth of a second). JSON is parsed in one call, which blocks all other threads.
JSON_BYTES = 4 << 20
# Longest attribute, characters.
ATTRIBUTE_LENGTH = 1024
# Resource attributes that name the run and the target.
RUN = "rollscope.run"
TARGET = "rollscope.target"
RUN, TARGET = "rollscope.run", "rollscope.target"
NO_RUN = (
    "the run is not named. Set the resource attribute rollscope.run (OTEL_RESOURCE_ATTRIBUTES=rollscope.run=NAME), the "
    "header x-rollscope-run or ?run=NAME; service.name is not used for it"
)
_UNSPECIFIED, _DELTA = 0, 1
_MAKE = {"histogram": explicit, "exponential_histogram": exponential}

# What the parsers raise for a malformed body. SystemError: protobuf's C code, for half a surrogate pair as a field's
# name. OverflowError: an integer that fits no float.
_MALFORMED = (
    DecodeError, json_format.ParseError, ValueError, RecursionError, AttributeError, TypeError, SystemError,
    OverflowError,
)  # fmt: skip

Key = tuple[str, str]
"""(run, target)."""


@dataclass(slots=True)
class RequestPart:
    """Data of one target."""

    samples: dict[tuple[str, Labels, int | None, str], Sample] = field(default_factory=dict)
    grown: list[Grown] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    quotas: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    points: int = 0
    refused: int = 0
    why: str = ""

    def body(self) -> Body:
        samples = [*self.samples.values(), *self._quotas()]
        reading = Reading(
            samples=tuple(samples), unmapped=self.unmapped, samples_scraped=self.points,
            dropped=self.refused, why_dropped=self.why,
        )  # fmt: skip
        return Body(reading, tuple(self.grown))

    def _quotas(self) -> Iterator[Sample]:
        """Yields quotas: per resource the region with the highest usage, because a sum would hide a full region."""
        regions: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
        for (resource, _), values in self.quotas.items():
            if "total" in values:
                regions[resource].append((values["total"], _used(values)))
        for resource, pairs in regions.items():
            total, used = max(pairs, key=lambda pair: (pair[1] or 0.0) / (pair[0] or 1.0))
            yield Sample("sandbox_quota_limit", total, (("resource", resource),))
            if used is not None:
                yield Sample("sandbox_quota_used", used, (("resource", resource),))


def _used(values: Mapping[str, float]) -> float | None:
    """Returns the used part of a quota: as reported, or total minus available."""
    if "used" in values or "available" not in values:
        return values.get("used")
    return values["total"] - values["available"]


@dataclass(slots=True)
class Read:
    """Outcome of a request. ``refused``: number of refused points; ``reasons``: why, each reason once."""

    parts: dict[Key, RequestPart] = field(default_factory=lambda: defaultdict(RequestPart))
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    runless: int = 0

    def refuse(self, why: str, count: int = 1) -> None:
        self.refused += count
        if why not in self.reasons and len(self.reasons) < 20:
            self.reasons.append(why)


def decode(body: bytes, kind: str) -> Any:
    """Parses a body of type `PROTOBUF` or `JSON` to the request message.

    Raises:
        ValueError: not such a message, or a JSON body that is too long.
    """
    if kind == JSON and len(body) > JSON_BYTES:
        raise ValueError(f"OTLP as JSON may have at most {JSON_BYTES} bytes: send protobuf")
    request = ExportMetricsServiceRequest()
    try:
        if kind == PROTOBUF:
            request.ParseFromString(body)
        else:
            json_format.ParseDict(json.loads(body), request, ignore_unknown_fields=True)
    except _MALFORMED as error:
        raise ValueError(f"the body is not an OTLP metrics request: {type(error).__name__}") from None
    return request


def refusal(message: str, kind: str, code: int) -> bytes:
    """Returns a `google.rpc.Status`, which the specification requires for every 4xx and 5xx.

    Encoded by hand (code is field 1, message is field 2), because its package would be a dependency for two fields.
    """
    if kind != PROTOBUF:
        return json.dumps({"code": code, "message": message}).encode()
    text, size = message.encode(errors="replace")[:4000], bytearray()
    length = len(text)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes((8, code, 18, *size, length)) + text


def answer(read: Read, kind: str) -> bytes:
    """Returns the response message: a partial success if points were refused."""
    response = ExportMetricsServiceResponse()
    if read.refused:
        response.partial_success.rejected_data_points = read.refused
        response.partial_success.error_message = "; ".join(read.reasons)[:4000]
    body: bytes = response.SerializeToString() if kind == PROTOBUF else json_format.MessageToJson(response).encode()
    return body


def read(request: Any, run: str, now: float, maps: Maps | None = None) -> Read:
    """Converts a request.

    Args:
        run: default run of resources without one ("": no default).
        maps: the user's metric names, which precede all others.

    Raises:
        ValueError: too many points.
    """
    result = Read()
    total = 0
    for resource in request.resource_metrics:
        attributes = _attributes(resource.resource.attributes)
        metrics = [(_scope(scope.scope), metric) for scope in resource.scope_metrics for metric in scope.metrics]
        count = sum(_count(metric) for _, metric in metrics)
        total += count
        if total > POINTS:
            raise ValueError(f"at most {POINTS} points at once")
        name = attributes.get(RUN) or run
        if not name:
            result.runless += count
            result.refuse(NO_RUN, count)
            continue
        key = (name, attributes.get(TARGET) or attributes.get("service.name") or "otlp")
        _Resource(result, result.parts[key], name, attributes, now, maps or {}).take(metrics)
    return result


def _count(metric: Any) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def _scope(scope: Any) -> str:
    """Returns the scope's key: two libraries in one process may use one metric name for two streams."""
    return f"{scope.name}@{scope.version}" if scope.name else ""


@dataclass(slots=True)
class _Resource:
    """Metrics of one process in a request. Gauges are summed per process."""

    result: Read
    part: RequestPart
    run: str
    attributes: dict[str, str]
    now: float
    maps: Maps
    summed: set[tuple[str, Labels]] = field(default_factory=set)
    process: str = ""

    def take(self, metrics: Sequence[tuple[str, Any]]) -> None:
        self.process = json.dumps(sorted(self.attributes.items()))
        rules = [self._rule(metric.name) for _, metric in metrics]
        best: dict[str, int] = {}
        for rule in rules:
            if isinstance(rule, Rule):
                best[rule.metric] = min(rule.rank, best.get(rule.metric, rule.rank))
        for (scope, metric), rule in zip(metrics, rules, strict=True):
            self.part.points += _count(metric)
            item = _Metric(self, scope, metric)
            if isinstance(rule, Rule):
                if rule.rank == best[rule.metric]:
                    item.mapped(rule)
            elif rule is not None:
                self._without_rule(metric.name, item)

    def _rule(self, name: str) -> Rule | str | None:
        """Returns the user's rule, else the built-in one; "": there is none; None: the metric is excluded."""
        for key in ((self.run, name), ("", name)):
            if key in self.maps:
                return self.maps[key]
        return RULES.get(name) or vllm_rule(name) or ""

    def _without_rule(self, name: str, item: "_Metric") -> None:
        unmapped = self.part.unmapped
        if name in QUOTAS:
            item.quota(*QUOTAS[name])
        elif (canonical := _canonical(name)) is not None:
            item.canonical(canonical)
        elif name in unmapped or len(unmapped) < 200:
            unmapped[name[:200]] = unmapped.get(name[:200], 0) + 1


def _canonical(name: str) -> Metric | None:
    """Finds a canonical name: OpenTelemetry writes dots and omits `_total`."""
    name = name.replace(".", "_")
    return push_metrics.find(name) or push_metrics.find(f"{name}_total")


@dataclass(slots=True)
class _Metric:
    """One metric of a resource."""

    resource: _Resource
    scope: str
    metric: Any

    def mapped(self, rule: Rule) -> None:
        """Converts a metric of another system; the rule determines its labels."""
        metric = METRICS[rule.metric]
        factor = rule.factor or self._factor(metric)
        for point, attributes in self._points():
            labels = rule.labels({**self.resource.attributes, **attributes})
            failed = bool(rule.failures) and attributes.get("status") == "error"
            if failed and self._kind() in _MAKE:
                self._take(METRICS[rule.failures], (("cause", "unknown"),), point, attributes, value=float(point.count))
            else:
                self._take(metric, labels, point, attributes, factor, adds=True)

    def canonical(self, metric: Metric) -> None:
        """Converts a metric with a canonical name; its attributes are its labels."""
        factor = self._factor(metric)
        for point, attributes in self._points():
            try:
                labels = push_metrics.labels_of(tuple(attributes.items()), self.resource.run)
            except ValueError as error:
                self._refuse(str(error))
                continue
            self._take(metric, self._with_replica(metric, labels), point, attributes, factor)

    def _with_replica(self, metric: Metric, labels: Labels) -> Labels:
        """Adds a replica label to gauges of engines that share a service name; otherwise only the last would count."""
        replica_name = replica(self.resource.attributes)
        labelled = {"engine", "replica"} & dict(labels).keys()
        if not replica_name or labelled or (metric.actor, metric.kind) != ("generator", "gauge"):
            return labels
        return tuple(sorted((*labels, ("replica", replica_name[: push_metrics.LABEL_LENGTH]))))

    def quota(self, resource: str, part: str) -> None:
        for point, attributes in self._points():
            region = attributes.get("region.id") or self.resource.attributes.get("region.id", "")
            self.resource.part.quotas[resource, region][part] = _number(point)

    def _factor(self, metric: Metric) -> float:
        return factor_of(self.metric.unit, metric.unit) or 1.0

    def _kind(self) -> str:
        return self.metric.WhichOneof("data") or ""

    def _refuse(self, why: str, count: int = 1) -> None:
        """Records a refusal for the answer and for the target's health, because users of charts do not see answers."""
        reason, part = f"{self.metric.name[:200]}: {why}", self.resource.part
        self.resource.result.refuse(reason, count)
        part.refused, part.why = part.refused + count, part.why or reason

    def _points(self) -> Iterator[tuple[Any, dict[str, str]]]:
        kind = self._kind()
        data: Any = getattr(self.metric, kind) if kind else None
        if kind == "summary":
            self._refuse("a summary has no buckets to add up: send a histogram", _count(self.metric))
        elif kind in ("sum", *_MAKE) and data.aggregation_temporality == _UNSPECIFIED:
            self._refuse("it has no aggregation temporality", _count(self.metric))
        elif kind:
            yield from self._distinct(point for point in data.data_points if not point.flags & 1)

    def _distinct(self, points: Iterable[Any]) -> Iterator[tuple[Any, dict[str, str]]]:
        """Yields one point per series and time; of a gauge only the newest, or a sum would count a series twice."""
        # Points with the flag "no recorded value" (an ended series) were removed before.
        points_by_labels: dict[tuple[tuple[str, str], ...], dict[int, tuple[Any, dict[str, str]]]] = {}
        for point in points:
            attributes = _attributes(point.attributes)
            times = points_by_labels.setdefault(tuple(sorted(attributes.items())), {})
            if point.time_unix_nano in times:
                self._refuse("two points of one series at one time")
            else:
                times[point.time_unix_nano] = (point, attributes)
        gauge = self._kind() == "gauge" or (self._kind() == "sum" and not self.metric.sum.is_monotonic)
        for times in points_by_labels.values():
            yield from [times[max(times)]] if gauge else times.values()

    def _take(
        self, metric: Metric, labels: Labels, point: Any, attributes: Mapping[str, str], factor: float = 1.0, *,
        value: float | None = None, adds: bool = False,
    ) -> None:  # fmt: skip
        ts, make = point.time_unix_nano / 1e9 or None, _MAKE.get(self._kind())
        try:
            if make is not None and value is None:
                self._grow(make(metric, point, labels, factor, ts, self.resource.now), point, attributes)
            elif metric.kind == "counter":
                scaled = self._counted(metric, point) / factor if value is None else value
                sample = push_metrics.sample(metric, scaled, labels, ts, None, "", self.resource.now)
                self._grow(sample, point, attributes)
            else:
                self._gauge(metric, labels, point, attributes, factor, ts, adds)
        except ValueError as error:
            self._refuse(str(error))

    def _counted(self, metric: Metric, point: Any) -> float:
        if self._kind() == "sum" and not self.metric.sum.is_monotonic:
            raise ValueError(f"{metric.name} is a counter, but this sum is not monotonic")
        return _number(point)

    def _grow(self, value: Sample | Histogram, point: Any, attributes: Mapping[str, str]) -> None:
        data = getattr(self.metric, self._kind())
        delta = getattr(data, "aggregation_temporality", 0) == _DELTA
        named = [self.resource.process, *filter(None, (self.scope,)), self.metric.name]
        text = json.dumps([*named, sorted(attributes.items())])
        stream = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
        self.resource.part.grown.append(Grown(stream, delta, point.start_time_unix_nano / 1e9, value))

    def _gauge(
        self, metric: Metric, labels: Labels, point: Any, attributes: Mapping[str, str], factor: float,
        ts: float | None, adds: bool,
    ) -> None:  # fmt: skip
        if self._kind() == "sum" and self.metric.sum.aggregation_temporality == _DELTA:
            raise ValueError(f"{metric.name} is a gauge, but this sum has delta temporality")
        step = push_metrics.step_of(attributes["step"]) if "step" in attributes else None
        axis = push_metrics.axis_of(attributes.get("axis", "trainer"))
        sample = push_metrics.sample(metric, _number(point) / factor, labels, ts, step, axis, self.resource.now)
        key, samples = (metric.name, labels, sample.step, sample.axis), self.resource.part.samples
        if adds and key[:2] in self.resource.summed:
            sample = Sample(metric.name, sample.value + samples[key].value, labels, ts)
        self.resource.summed.add(key[:2])
        samples[key] = sample


def _number(point: Any) -> float:
    return float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)


def _attributes(pairs: Iterable[Any]) -> dict[str, str]:
    """Returns scalar attributes as text; lists and maps cannot be labels."""
    attributes = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            value = getattr(pair.value, kind)
            text = str(value).lower() if kind == "bool_value" else str(value)
            attributes[pair.key[:ATTRIBUTE_LENGTH]] = text[:ATTRIBUTE_LENGTH]
    return attributes
