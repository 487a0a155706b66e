"""The `/metrics` page of one SGLang engine in the shape of a recorded 0.5.23 page, and the page of its router.

`sglang_page.txt` is that page with slots in place of the values that move, and with the further counters that slime's
engines have (live tokens, aborted requests). Scheduler gauges are fresh here; the real ones are some decode steps old.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import ClassVar

from server.demo.engine import Engine
from server.demo.engine_stats import EngineStats
from server.demo.histogram import Histogram
from server.demo.prometheus_text import number
from server.demo.rollouts import Rollout

_LAYOUT = Path(__file__).with_name("sglang_page.txt")
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
        text = Template(_LAYOUT.read_text("utf-8")).substitute(model=model, pid=_PID + engine.index)
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
