"""Verdicts of the rich run: what holds it back now, and how it came to that within the hour."""

from typing import Any

from msgspec import structs

from server.query.types import VerdictSpan
from server.verdict.model import Advice, Evidence, Limiter, Outcome, Verdict, shared
from tests.dashboard.fake import NOW, RICH
from tests.dashboard.memory_reader import MemoryReader

NASTY = '<img src=x onerror="window.hacked=1">'

LIMITERS = shared(
    (
        Limiter("generator_bound", "kv_capacity", 2.2, 2.0, text="the KV cache is full"),
        Limiter("sandbox_bound", "spin_up", 1.3, 1.25, text=f"p95 of a start is 140 s on {NASTY}"),
    )
)

NOW_IS = Verdict(
    "generator_bound", "kv_capacity", "V14", 0.86, 0.9, NOW - 720,
    "Generation limits the run: the trainer waits 74% of each step; the KV cache is full",
    (
        Evidence("The trainer waits 74% of its step", "trainer_wait_ratio", 0.74, "ratio"),
        Evidence(
            "The trainer consumes 1.95 samples/s; its capacity is 5.4",
            "capacity_samples_per_second", 5.4, "samples/s", 1.95,
        ),
        Evidence("KV cache 97% full", "kv_cache_usage_ratio", 0.97, "ratio"),
        Evidence(f"Engines of {NASTY} run 512 requests, 1204 wait", "generator_requests", 512.0, "requests"),
    ),
    LIMITERS,
    (Advice("kv_cache", text="Give generation more KV memory: move GPUs to it, shorten responses, or quantise it."),),
    {"gap_factor": 2.77},
    ("tail_index_ratio: push rollout records",),
    ("the trainer says it waits 74% of its step; 52% follows from what arrives",),
    usd_per_hour=18.44,
)  # fmt: skip

UNKNOWN = Verdict(
    "unknown", "missing", "V02", summary="the engines are not watched, so what is slow is unknown",
    missing=("generator_requests: add the engines' /metrics as targets", "queue_samples: log the queue's depth"),
)  # fmt: skip


def span(start: float, end: float | None, outcome: Outcome, cause: str, summary: str, **more: Any) -> VerdictSpan:
    """``start`` and ``end`` in seconds before now."""
    verdict = Verdict(outcome, cause, summary=summary)
    ended = None if end is None else NOW - end
    given = {"rules_version": 1, "replayed": False, **more}
    return VerdictSpan(
        NOW - start, ended, NOW - start, outcome, cause, "V14", 0.86, summary, given["rules_version"],
        given["replayed"], verdict,
    )  # fmt: skip


def hour() -> list[VerdictSpan]:
    """Balanced, then unknown for two minutes, then the sandboxes, then the engines."""
    return [
        span(7200, 2640, "balanced", "", "Generator and trainer are matched"),
        span(2640, 2520, "unknown", "incomplete", "the window is not whole"),
        span(2520, 720, "sandbox_bound", "spin_up", "Sandboxes limit the run: p95 of a start is 140 s"),
        span(720, None, "generator_bound", "kv_capacity", NOW_IS.summary),
    ]


def judged(reader: MemoryReader) -> MemoryReader:
    """The same reader, with the verdict and its hour."""
    reader.set_verdict(RICH, structs.replace(NOW_IS, as_of=NOW), *hour())
    return reader
