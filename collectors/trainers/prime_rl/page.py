"""prime-rl's own metrics page: the trainer's last step as gauges (559b4477: utils/metrics_server.py).

Off by default (`trainer.metrics_server`), on port 8000 of the master, which is also vLLM's default. It has no wait,
phases or staleness: those are in metrics.jsonl of the run directory. A step that begins and ends between two reads is
not seen.
"""

import re
from collections.abc import Iterator, Mapping
from math import isfinite

import httpx

from collectors.formats.exposition import parser
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

STEP, STAMP = "trainer_step", "trainer_last_step_timestamp_seconds"
_BUSY: Labels = (("basis", "busy"),)

_GAUGES: Mapping[str, tuple[str, Labels, float]] = {
    "trainer_loss": ("loss_mean", (), 1),
    "trainer_grad_norm": ("gradient_norm", (), 1),
    "trainer_learning_rate": ("learning_rate", (), 1),
    "trainer_entropy": ("entropy_mean", (), 1),
    "trainer_mismatch_kl": ("mismatch_kl_mean", (), 1),
    "trainer_peak_memory_gib": ("trainer_peak_memory_bytes", (), 2**30),
    # Both over forward and backward only, like the keys of metrics.jsonl.
    "trainer_mfu_percent": ("trainer_mfu_ratio", _BUSY, 0.01),
    "trainer_throughput_tokens_per_sec": ("trainer_tokens_per_second", _BUSY, 1),
}
_KNOWN = frozenset((STEP, STAMP, "trainer_kl_ent_ratio"))
_PAGE = re.compile(rb"^trainer_last_step_timestamp_seconds[ {]", re.M)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """The page's step, at the time it ended. Before the first step there is none, because gauges begin at 0.

    Raises:
        ScrapeError: ``garbage`` for a page of another system, and as `parser.parse`.
    """
    page = parser.parse(body, state, limits)
    parser.check_whole(body)
    values = {series.name: value for series, value in page.samples}
    if STAMP not in values:
        raise ScrapeError("garbage", "a metrics page without prime-rl's trainer_ series")
    return Reading(
        samples=tuple(_samples(values)),
        facts={"framework": "prime_rl", "mode": "async"},
        unmapped={name: 1 for name in sorted(values) if name.startswith("trainer_") and not _is_known(name)},
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(page.samples),
    )


def _samples(values: Mapping[str, float]) -> Iterator[Sample]:
    step, ts = values.get(STEP), values[STAMP]
    if step is None or not isfinite(step) or not isfinite(ts) or ts <= 0:
        return
    for name, (metric, labels, scale) in _GAUGES.items():
        if name in values and isfinite(values[name]):
            yield Sample(metric, values[name] * scale, labels, ts, int(step), "trainer")
    if "trainer_grad_norm" in values:
        broken = float(not isfinite(values["trainer_grad_norm"]))
        yield Sample("gradient_nonfinite", broken, (), ts, int(step), "trainer")


def _is_known(name: str) -> bool:
    return name in _GAUGES or name in _KNOWN or name.endswith("_created")


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page: at the client's base URL when that names one, else at /metrics under it.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    path = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=path) if path.endswith("metrics") else "/metrics"
    return parse(await http.get(client, url, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Returns whether it is the page of prime-rl's trainer."""
    return _PAGE.search(body) is not None
