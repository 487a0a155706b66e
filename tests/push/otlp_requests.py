"""OTLP requests for tests: recorded ones, and those built by hand in the format's own JSON."""

import gzip
import json
from pathlib import Path
from typing import Any

from server.push import otlp
from server.push.inbox import Body

DATA = Path(__file__).parent.parent / "testdata/otlp"
NOW = 1_795_300_870.0


def recorded(name: str) -> Any:
    return otlp.decode(gzip.decompress((DATA / f"{name}.pb.gz").read_bytes()), otlp.PROTOBUF)


def body(request: Any, run: str = "") -> Body:
    found = otlp.read(request, run, NOW)
    assert found.refused == 0, found.reasons
    (part,) = found.parts.values()
    return part.body()


def attributes(**values: str | int) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in values.items()
    ]


def request(*metrics: dict[str, Any], **resource: str) -> Any:
    given = attributes(**{key.replace("__", "."): value for key, value in resource.items()})
    whole = {"resourceMetrics": [{"resource": {"attributes": given}, "scopeMetrics": [{"metrics": list(metrics)}]}]}
    return otlp.decode(json.dumps(whole).encode(), otlp.JSON)


def gauge(name: str, *points: tuple[float, dict[str, Any]]) -> dict[str, Any]:
    rows = [{"asDouble": v, "timeUnixNano": str(int(NOW * 1e9)), "attributes": attributes(**a)} for v, a in points]
    return {"name": name, "gauge": {"dataPoints": rows}}


def histogram(
    name: str, counts: list[int], bounds: list[float], total: float, temporality: int = 2, **labels: str
) -> dict[str, Any]:
    point = {
        "timeUnixNano": str(int(NOW * 1e9)), "count": str(sum(counts)), "sum": total, "explicitBounds": bounds,
        "bucketCounts": [str(count) for count in counts], "attributes": attributes(**labels),
    }  # fmt: skip
    return {"name": name, "histogram": {"aggregationTemporality": temporality, "dataPoints": [point]}}


def total(name: str, *points: dict[str, Any], monotonic: bool = True, temporality: int = 2) -> dict[str, Any]:
    return {
        "name": name,
        "sum": {"aggregationTemporality": temporality, "isMonotonic": monotonic, "dataPoints": list(points)},
    }
