"""The `/metrics` page of one engine, byte for byte in the shape of a recorded vLLM 0.32.0 page.

`vllm_page.txt` is that page with slots in place of the values that move. Constant parts are assembled once per engine;
a request fills the slots. The numbers come from `engine_stats`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import ClassVar

from demo.engine import BLOCK_TOKENS, HTTP_COARSE_SECONDS, HTTP_SECONDS, MAX_MODEL_LEN, Engine, EngineStats, Histogram
from demo.rollouts import Rollout

# ---- prometheus text
# Number format of prometheus_client.


def number(value: float) -> str:
    """Formats a float with Go's exponents from 1e6 up: 1599 -> `1599.0`, 1795246807 -> `1.795246807e+09`."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


# ---- vllm http
# The http_ families at the foot of a vLLM page: what prometheus-fastapi-instrumentator counts per handler.

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


_LAYOUT = Path(__file__).with_name("vllm_page.txt")
# An engine starts a minute and a half before the run begins: load, compile, capture.
_BOOT_SECONDS = 97.25
_READY_SECONDS = 41.5
_CREATED_GAP_SECONDS = 1.3e-05  # between two metrics' constructors, as recorded


class Page:
    """Renders one engine at any moment `now` (seconds since the run began at epoch `start`)."""

    content_type: ClassVar = "text/plain; version=1.0.0; charset=utf-8"

    def __init__(self, engine: Engine, start: float, served: bool = True) -> None:
        """`served`: requests come over HTTP, and weights by its routes; else only the page does."""
        self._engine = engine
        self._served = served
        self._start = start
        self._slots: list[str] = []
        self._created = 0
        lines = Template(_LAYOUT.read_text()).substitute(self._constants()).splitlines()
        self._template = "".join(self._line(line) for line in lines)

    def render(self, now: float) -> bytes:
        values = self._values(now)
        filled = self._template % tuple(number(values[slot]) for slot in self._slots)
        return (filled + (http_families(self._engine, self._start) if self._served else "")).encode()

    # -- once --------------------------------------------------------------------------------------------------

    def _constants(self) -> dict[str, object]:
        s = self._engine.scenario
        return {
            "model": s.model,
            "block_size": BLOCK_TOKENS,
            "kv_tokens": s.kv_tokens,
            "kv_blocks": s.kv_tokens // BLOCK_TOKENS,
            "kv_bytes": s.kv_tokens * s.kv_bytes_per_token,
            "kv_concurrency": s.kv_tokens / MAX_MODEL_LEN,
        }

    def _line(self, line: str) -> str:
        """One line of the layout as a line of the %-template; a histogram becomes many."""
        literal = line.replace("%", "%%")
        if line.startswith("#") or not line.endswith(">"):
            return literal + "\n"
        head, slot = literal[:-1].rsplit(" <", 1)
        if " <histogram " in literal:
            head, slot = literal[:-1].rsplit(" <histogram ", 1)
            return self._histogram(head, slot)
        if slot == "created":
            return f"{head} {self._created_at()}\n"
        return self._slotted(head, slot)

    def _slotted(self, head: str, slot: str) -> str:
        self._slots.append(slot)
        return f"{head} %s\n"

    def _created_at(self) -> str:
        self._created += 1
        return number(self._start - _READY_SECONDS + self._created * _CREATED_GAP_SECONDS)

    def _histogram(self, head: str, slot: str) -> str:
        name, labels = head.rstrip("}").split("{")
        engine, model = labels.split(",", 1)
        edges = getattr(self._engine.stats, slot).edges
        names = [*(repr(edge) for edge in edges), "+Inf"]
        lines = [
            self._slotted(f'{name}_bucket{{{engine},le="{edge}",{model}}}', f"{slot}[{index}]")
            for index, edge in enumerate(names)
        ]
        lines.append(self._slotted(f"{name}_count{{{labels}}}", f"{slot}[{len(edges)}]"))
        lines.append(self._slotted(f"{name}_sum{{{labels}}}", f"{slot}[sum]"))
        return "".join(lines)

    # -- each time ---------------------------------------------------------------------------------------------

    def _values(self, now: float) -> dict[str, float]:
        values = {**self._gauges(now), **self._counters(now), **_process(self._engine, self._start, now)}
        for name, histogram in vars(self._engine.stats).items():
            if isinstance(histogram, Histogram):
                values.update((f"{name}[{i}]", count) for i, count in enumerate(histogram.cumulative()))
                values[f"{name}[sum]"] = histogram.total
        # The fluid has fractions of a token; the page has none.
        values["iteration_tokens[sum]"] = int(values["iteration_tokens[sum]"])
        return values

    def _gauges(self, now: float) -> dict[str, float]:
        engine = self._engine
        # The denominator leaves out the null block (vllm/v1/core/block_pool.py).
        blocks = engine.scenario.kv_tokens // BLOCK_TOKENS - 1
        used = min(blocks, round(engine.kv_tokens_at(now) / BLOCK_TOKENS))
        return {
            "running": len(engine.running),
            "waiting": len(engine.waiting),
            "kv_usage": used / blocks,
            **_awake(engine),
        }

    def _counters(self, now: float) -> dict[str, float]:
        stats = self._engine.stats
        return {
            "prefix_queries": stats.prefix_queries,
            "prefix_hits": stats.prefix_hits,
            "prefix_hits_first": stats.prompt_hits,
            "preemptions_total": stats.preemptions,
            "prompt_tokens_total": stats.prompt_tokens,
            "prompt_computed": stats.prompt_tokens - stats.prompt_hits,
            "generation_tokens_total": self._engine.generated_at(now),
            "success_stop": stats.finished_stop,
            "success_length": stats.finished_length,
        }


def _awake(engine: Engine) -> dict[str, float]:
    """Sleep level 2 drops weights and cache."""
    return {"awake": float(not engine.is_asleep), "discarded": float(engine.is_asleep)}


def _process(engine: Engine, start: float, now: float) -> dict[str, float]:
    """python_ and process_ families of the API server: plausible values, not simulated."""
    return {
        "gc_0": 1845 + int(now * 0.9),
        "gc_1": 167 + int(now * 0.08),
        "gc_2": 11 + int(now * 0.005),
        "process_virtual": 2_041_540_608,
        "process_resident": 702_246_912 + engine.load * 65_536,
        "process_start": start - _BOOT_SECONDS,
        "process_cpu": round(17.92 + now * 0.24, 2),
        "process_fds": 35 + engine.load,
    }


# ---- sglang page
# The `/metrics` page of one SGLang engine in the shape of a recorded 0.5.23 page, and the page of its router.

_SGLANG_PAGE_LAYOUT = Path(__file__).with_name("sglang_page.txt")
_PID = 29_002

# srt/observability/metrics_collector.py, as on the recorded page.
_QUEUE = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, *map(float, range(1, 6)), 10.0, 15.0, 20.0,
    *map(float, range(30, 101, 10)), *map(float, range(200, 1_001, 100)), 1_200.0, 1_400.0, 1_600.0, 1_800.0, 2_000.0,
    2_500.0, 3_000.0,
)  # fmt: skip
_FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_REQUEST = (*_FIRST_TOKEN, 600.0, 1_200.0, 1_800.0, 2_400.0)
_TOKEN = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08,
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_LENGTHS = (
    100.0, 300.0, 500.0, 700.0, 1_000.0, 1_500.0, 2_000.0, *map(float, range(3_000, 10_001, 1_000)),
    *map(float, range(12_500, 30_001, 2_500)), 35_000.0, 40_000.0, 60_000.0, 80_000.0, 100_000.0,
    200_000.0, 300_000.0, 400_000.0, 600_000.0, 800_000.0, 1e6, 1.1e6,
)  # fmt: skip


class SglangStats(EngineStats):
    """Statistics of an SGLang engine, with its own edges. Prompt and response tokens count when a request ends."""

    def _add_histograms(self) -> None:
        super()._add_histograms()
        self.queue_seconds = Histogram(_QUEUE)
        self.first_token_seconds = Histogram(_FIRST_TOKEN)
        self.inter_token_seconds = Histogram(_TOKEN)
        self.e2e_seconds = Histogram(_REQUEST)
        for name in ("request_prompt_tokens", "request_generation_tokens", "prefill_computed_tokens"):
            setattr(self, name, Histogram(_LENGTHS))
        self.aborted = 0

    def abort(self, rollout: Rollout) -> None:
        """Ends running requests with the tokens that they have; waiting ones are only aborted."""
        self.aborted += 1
        if not rollout.scheduled:
            return
        self.finished_stop += 1
        self.request_prompt_tokens.observe(rollout.group.prompt_tokens)
        self.request_generation_tokens.observe(rollout.generated)
        self.prefill_computed_tokens.observe(rollout.computed_tokens)
        self.e2e_seconds.observe(rollout.finished - rollout.dispatched)


class SglangPage:
    """Renders one engine at any moment `now` (seconds since the run began)."""

    content_type: ClassVar = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine: Engine, model: str, context: int, gigabytes: tuple[float, float]) -> None:
        self._engine = engine
        self._fixed = {"context": context, "weight_gb": gigabytes[0], "kv_gb": gigabytes[1]}
        self._slots: list[str] = []
        text = Template(_SGLANG_PAGE_LAYOUT.read_text("utf-8")).substitute(model=model, pid=_PID + engine.index)
        self._template = "".join(map(self._line, text.splitlines()))

    def _line(self, line: str) -> str:
        """One line of the layout as a line of the %-template; a histogram becomes many."""
        literal = line.replace("%", "%%")
        if line.startswith("#") or not line.endswith(">"):
            return literal + "\n"
        if " <histogram " in literal:
            head, slot = literal[:-1].rsplit(" <histogram ", 1)
            return self._histogram(head, slot)
        head, slot = literal[:-1].rsplit(" <", 1)
        self._slots.append(slot)
        return f"{head} %s\n"

    def _histogram(self, head: str, slot: str) -> str:
        name, inner = head.rstrip("}").split("{")
        labels = inner.split(",")
        edges = [*map(number, getattr(self._engine.stats, slot).edges), "+Inf"]
        self._slots.append(f"{slot}[sum]")
        lines = [f"{name}_sum{{{inner}}} %s\n"]
        for index, edge in enumerate(edges):
            le = f'le="{edge}"'
            at = bisect_right(labels, le)  # labels are in the order of their names
            lines.append(f"{name}_bucket{{{','.join([*labels[:at], le, *labels[at:]])}}} %s\n")
            self._slots.append(f"{slot}[{index}]")
        self._slots.append(f"{slot}[{len(edges) - 1}]")
        return "".join(lines) + f"{name}_count{{{inner}}} %s\n"

    def render(self, now: float) -> bytes:
        values = self._values(now)
        return (self._template % tuple(number(values[slot]) for slot in self._slots)).encode()

    def _values(self, now: float) -> dict[str, float]:
        values = {**self._fixed, **self._gauges(now), **self._counters(now)}
        for name, histogram in vars(self._engine.stats).items():
            if isinstance(histogram, Histogram):
                values.update((f"{name}[{i}]", count) for i, count in enumerate(histogram.cumulative()))
                values[f"{name}[sum]"] = histogram.total
        return values

    def _gauges(self, now: float) -> dict[str, float]:
        engine, stats = self._engine, self._engine.stats
        capacity = engine.scenario.kv_tokens
        used = min(capacity, round(engine.kv_tokens_at(now)))
        running = len(engine.running)
        return {
            "running": running,
            "waiting": len(engine.waiting),
            "throughput": running / engine.iteration_seconds if running and not engine.is_frozen else 0.0,
            "hit_rate": stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0,
            "sequence_tokens": used if running else 0,
            "kv_capacity": capacity,
            "kv_used": used,
            "kv_free": capacity - used,
            "kv_usage": used / capacity,
        }

    def _counters(self, now: float) -> dict[str, float]:
        engine, stats = self._engine, self._engine.stats
        assert isinstance(stats, SglangStats)
        computed = stats.prompt_tokens - stats.prompt_hits
        return {
            "prefill_input": computed,
            "prefill_hit": stats.prompt_hits,
            "live_computed": computed,
            "live_cached": stats.prompt_hits,
            "live_decoded": engine.generated_at(now),
            "prompt_tokens": stats.request_prompt_tokens.total,
            "generation_tokens": stats.request_generation_tokens.total,
            "cached_tokens": stats.request_prompt_tokens.total - stats.prefill_computed_tokens.total,
            "requests": stats.finished,
            "aborted": stats.aborted,
            "idle_seconds": round(engine.idle_seconds_at(now), 6),
        }


def router_page(engines: Sequence[Engine], urls: Sequence[str], model: str) -> bytes:
    """The Prometheus port of sglang-router 0.3 (names: model_gateway/src/observability/metrics.rs)."""
    labels = f'router_type="http",backend_type="regular",connection_mode="http",model="{model}"'
    workers = f'worker_type="regular",connection_mode="http",model="{model}"'
    sent = sum(engine.stats.finished + engine.load for engine in engines)
    alive = [int(not engine.is_dead) for engine in engines]
    lines = [
        "# TYPE smg_router_requests_total counter",
        f'smg_router_requests_total{{{labels},endpoint="generate",streaming="false"}} {sent}',
        "",
        "# TYPE smg_worker_health gauge",
        *(f'smg_worker_health{{worker="{url}"}} {up}' for url, up in zip(urls, alive, strict=True)),
        "",
        "# TYPE smg_worker_requests_active gauge",
        *(f'smg_worker_requests_active{{worker="{u}"}} {one.load}' for u, one in zip(urls, engines, strict=True)),
        "",
        "# TYPE smg_worker_pool_size gauge",
        f"smg_worker_pool_size{{{workers}}} {sum(alive)}",
    ]
    return ("\n".join(lines) + "\n").encode()
