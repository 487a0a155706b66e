"""The `/metrics` page of one engine, byte for byte in the shape of a recorded vLLM 0.32.0 page.

`vllm_page.txt` is that page with slots in place of the values that move. Constant parts are assembled once per engine;
a request fills the slots. The numbers come from `engine_stats`.
"""

from pathlib import Path
from string import Template
from typing import ClassVar

from server.demo.engine import BLOCK_TOKENS, Engine
from server.demo.engine_stats import MAX_MODEL_LEN
from server.demo.histogram import Histogram
from server.demo.prometheus_text import number
from server.demo.vllm_http import http_families

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
