"""Pages of vLLM for its tests: recorded ones, and lines written by hand."""

from collections.abc import Iterable

from collectors.generators import vllm
from collectors.model import Limits, Reading, Sample
from tests.collectors._reading import TESTDATA

PAGES = TESTDATA / "vllm"
LOAD = PAGES / "default" / "metrics_1795246810368_load.prom"
ENGINE = (("engine", "0"),)


def parse(text: str) -> Reading:
    return vllm.parse(text.encode(), {}, Limits())


def metrics(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    """(metric, "label=value", ...) -> value."""
    return {(s.metric, *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


def token_gap(name: str, count: int) -> str:
    """A histogram of one bucket that holds ``count`` observations."""
    return (
        f"# TYPE vllm:{name} histogram\n"
        f'vllm:{name}_bucket{{engine="0",le="0.1"}} {count}\nvllm:{name}_bucket{{engine="0",le="+Inf"}} {count}\n'
        f'vllm:{name}_sum{{engine="0"}} 1\n'
    )
