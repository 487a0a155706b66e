"""The http_ families at the foot of a vLLM page: what prometheus-fastapi-instrumentator counts per handler.

prime-rl swaps weights through `/pause`, `/update_weights`, `/resume` of its own vLLM server, so these counters are
the only trace of a weight update on the page.
"""

from dataclasses import dataclass

from server.demo.engine import Engine
from server.demo.histogram import HTTP_COARSE_SECONDS, HTTP_SECONDS
from server.demo.prometheus_text import number

_PAUSE_SECONDS = 0.012  # both calls only flip a flag in the engine core
_RESUME_SECONDS = 0.008
_BYTES_PER_TOKEN = 5.5  # a token id as JSON text
_HELP = {
    "http_requests": "Total number of requests by method, status and handler.",
    "http_request_size_bytes": (
        "Content length of incoming requests by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "http_response_size_bytes": (
        "Content length of outgoing responses by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "http_request_duration_highr_seconds": (
        "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
    ),
    "http_request_duration_seconds": (
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
    ),
}


@dataclass(frozen=True)
class Handler:
    """One route: calls answered, their latencies at the coarse edges and at the fine ones, bytes in and out."""

    path: str
    calls: int
    seconds: float
    coarse: list[float]
    fine: list[float]
    received: float
    sent: float
    created: float


def http_families(engine: Engine, start: float) -> str:
    """The five families as text, handlers in the order of their first call."""
    handlers = sorted(_handlers(engine), key=lambda handler: handler.created)
    lines = _requests(handlers, start)
    lines += _sizes("http_request_size_bytes", [(h, h.received) for h in handlers], start)
    lines += _sizes("http_response_size_bytes", [(h, h.sent) for h in handlers], start)
    lines += _fine_latency(handlers, start)
    lines += _coarse_latency(handlers, start)
    return "\n".join(lines) + "\n"


def _handlers(engine: Engine) -> list[Handler]:
    update_seconds = engine.scenario.pause_seconds - _PAUSE_SECONDS - _RESUME_SECONDS
    first = engine.first_paused
    found = [
        _generate(engine),
        _fixed("/pause", engine.pauses, _PAUSE_SECONDS, first),
        _fixed("/update_weights", engine.resumes, update_seconds, first + update_seconds),
        _fixed("/resume", engine.resumes, _RESUME_SECONDS, first + engine.scenario.pause_seconds),
    ]
    return [handler for handler in found if handler.calls]


def _generate(engine: Engine) -> Handler:
    stats = engine.stats
    return Handler(
        path="/inference/v1/generate",
        calls=stats.finished,
        seconds=stats.http_seconds.total,
        coarse=stats.http_coarse_seconds.cumulative(),
        fine=stats.http_seconds.cumulative(),
        received=stats.request_prompt_tokens.total * _BYTES_PER_TOKEN,
        sent=stats.request_generation_tokens.total * _BYTES_PER_TOKEN,
        created=stats.first_finished,
    )


def _fixed(path: str, calls: int, seconds: float, created: float) -> Handler:
    """A route whose calls all take the same time."""
    coarse, fine = (
        [float(calls) if seconds <= edge else 0.0 for edge in (*edges, float("inf"))]
        for edges in (HTTP_COARSE_SECONDS, HTTP_SECONDS)
    )
    return Handler(path, calls, calls * seconds, coarse, fine, 0.0, calls * 19.0, created)


def _head(name: str, kind: str, suffix: str = "") -> list[str]:
    return [f"# HELP {name}{suffix} {_HELP[name]}", f"# TYPE {name}{suffix} {kind}"]


def _created(name: str, labelled: list[tuple[str, float]], start: float) -> list[str]:
    samples = [f"{name}_created{labels} {number(start + at)}" for labels, at in labelled]
    return _head(name, "gauge", "_created") + samples


def _requests(handlers: list[Handler], start: float) -> list[str]:
    labels = [(f'{{handler="{h.path}",method="POST",status="2xx"}}', h) for h in handlers]
    samples = [f"http_requests_total{label} {number(h.calls)}" for label, h in labels]
    created = _created("http_requests", [(label, h.created) for label, h in labels], start)
    return _head("http_requests", "counter", "_total") + samples + created


def _sizes(name: str, sized: list[tuple[Handler, float]], start: float) -> list[str]:
    samples = []
    for handler, size in sized:
        label = f'{{handler="{handler.path}"}}'
        samples += [f"{name}_count{label} {number(handler.calls)}", f"{name}_sum{label} {number(size)}"]
    labelled = [(f'{{handler="{handler.path}"}}', handler.created) for handler, _ in sized]
    return _head(name, "summary") + samples + _created(name, labelled, start)


def _fine_latency(handlers: list[Handler], start: float) -> list[str]:
    name = "http_request_duration_highr_seconds"
    counts = [sum(column) for column in zip(*(h.fine for h in handlers), strict=True)] or [0.0] * (
        len(HTTP_SECONDS) + 1
    )
    edges = [*(repr(edge) for edge in HTTP_SECONDS), "+Inf"]
    lines = [f'{name}_bucket{{le="{e}"}} {number(c)}' for e, c in zip(edges, counts, strict=True)]
    lines.append(f"{name}_count {number(counts[-1])}")
    lines.append(f"{name}_sum {number(sum(h.seconds for h in handlers))}")
    return _head(name, "histogram") + lines + _created(name, [("", -41.0)], start)


def _coarse_latency(handlers: list[Handler], start: float) -> list[str]:
    name = "http_request_duration_seconds"
    edges = [*(repr(edge) for edge in HTTP_COARSE_SECONDS), "+Inf"]
    lines = []
    for h in handlers:
        lines += [
            f'{name}_bucket{{handler="{h.path}",le="{e}",method="POST"}} {number(c)}'
            for e, c in zip(edges, h.coarse, strict=True)
        ]
        lines.append(f'{name}_count{{handler="{h.path}",method="POST"}} {number(h.calls)}')
        lines.append(f'{name}_sum{{handler="{h.path}",method="POST"}} {number(h.seconds)}')
    labelled = [(f'{{handler="{h.path}",method="POST"}}', h.created) for h in handlers]
    return _head(name, "histogram") + lines + _created(name, labelled, start)
