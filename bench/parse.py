"""Cost of reading one vLLM page, compared with prometheus_client in the same run. Prints one JSON line.

    python -m bench.parse [PAGE]

Cold is the first page of a target, warm every later one (the key cache is filled). ``reader`` is the exposition
reader alone and what ``ratio_*`` compare; ``collector`` is vLLM's whole `parse`, mapping and histograms included.
Times are the median of CPU time, because the machine is shared.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from collectors.formats import exposition
from collectors.generators import vllm
from collectors.model import Limits

PAGE = Path(__file__).parents[1] / "tests/testdata/vllm/default/metrics_1795246810368_load.prom"
ROUNDS = 60


def milliseconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Returns the median CPU time of a call."""
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        call()
        times.append(time.process_time_ns() - start)
    return statistics.median(times) / 1e6


def identical(body: bytes) -> bool:
    """Whether both readers return the same names, labels and values, cold and warm."""
    expected = sorted(
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    )
    state: dict[str, object] = {}
    pages = [exposition.parse(body, state, Limits()) for _ in range(2)]
    return all(sorted((n, labels, repr(value)) for n, labels, value in page.rows()) == expected for page in pages)


def main() -> None:
    """Measures and prints."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    body, limits = path.read_bytes(), Limits()
    state: dict[str, object] = {}
    reading = vllm.parse(body, state, limits)
    reference = milliseconds(lambda: list(text_string_to_metric_families(body.decode())), ROUNDS // 3)
    warm = milliseconds(lambda: exposition.parse(body, state, limits))
    cold = milliseconds(lambda: (exposition.forget(), exposition.parse(body, {}, limits)))
    result = {
        "bench": "parse",
        "page": path.name,
        "bytes": len(body),
        "samples": reading.samples_scraped,
        "prometheus_client_ms": round(reference, 3),
        "reader_warm_ms": round(warm, 3),
        "reader_cold_ms": round(cold, 3),
        "collector_warm_ms": round(milliseconds(lambda: vllm.parse(body, state, limits)), 3),
        "collector_cold_ms": round(milliseconds(lambda: (exposition.forget(), vllm.parse(body, {}, limits))), 3),
        "ratio_warm": round(reference / warm, 1),
        "ratio_cold": round(reference / cold, 1),
        "identical": identical(body),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
