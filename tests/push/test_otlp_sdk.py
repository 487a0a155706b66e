"""The real OpenTelemetry SDK and its exporter, through HTTP, into our totals. Numbers by hand."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from collectors.model import Histogram
from server.api.push import plain_of
from server.push import otlp
from server.push.inbox import Body
from server.push.targets import ProcessTotals
from tests.support_sdks import python_with

NOW = 4_000_000_000.0

SCRIPT = """
import sys
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, UpDownCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource

def metered(name, **more):
    exporter = OTLPMetricExporter(sys.argv[1], timeout=20, compression=Compression.Gzip, **more)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10**8)
    own = Resource.create({"rollscope.run": "r", "rollscope.target": name, "generator_name": "gen", "rank": 0})
    provider = MeterProvider([reader], own)
    meter = provider.get_meter("engine")
    tokens = meter.create_counter("vllm.generation_tokens")
    first = meter.create_histogram("vllm.time_to_first_token", "ms")
    running = meter.create_up_down_counter("vllm.num_running_requests")
    for amount, latencies in ((100, [200, 300]), (50, [3000])):
        tokens.add(amount)
        running.add(2)
        for one in latencies:
            first.record(one)
        provider.force_flush()

delta = AggregationTemporality.DELTA
metered("cumulative")
metered(
    "delta", preferred_temporality={Counter: delta, Histogram: delta},
    preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()},
)
"""


@contextmanager
def receiver(taken: dict[str, list[Body]]) -> Iterator[str]:
    """What is posted, read as the server reads it; answered as the server answers it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kind = self.headers["content-type"]
            found = otlp.read(otlp.decode(plain_of(body, self.headers["content-encoding"]), kind), "", NOW)
            for (_, target), part in found.parts.items():
                taken.setdefault(target, []).append(part.body())
            answer = otlp.answer(found, kind)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_both_temporalities_and_both_histograms_of_the_real_sdk_say_the_same(tmp_path: Path) -> None:
    taken: dict[str, list[Body]] = {}
    with receiver(taken) as url:
        told = subprocess.run(
            [python_with("opentelemetry/sdk/metrics"), "-I", "-c", SCRIPT, url], capture_output=True, text=True,
            timeout=60, cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        )  # fmt: skip
    assert (told.returncode, told.stderr) == (0, "")
    for target, edges in (("cumulative", 15), ("delta", len(otlp.EDGES[2]))):
        bodies = taken[target]
        assert len(bodies) == 3  # two flushes and the one of the exit
        totals, samples, histograms = ProcessTotals(), [], []
        for at, body in enumerate(bodies):
            more = totals.add(body.grown, NOW + at)
            samples, histograms = samples + more[0], histograms + more[1]
        assert totals.dropped == 0
        # Whoever counts since the beginning says at the exit once more what it said.
        assert list(dict.fromkeys(sample.value for sample in samples if sample.value)) == [100.0, 150.0]
        last: Histogram = histograms[-1]
        assert (last.counts[-1], round(last.total, 9), len(last.edges)) == (3.0, 3.5, edges)
        assert last.labels == (("replica", "gen/0"),)
        # 0.2 and 0.3 s are below half a second, 3 s is not.
        half = max(n for n, edge in enumerate(last.edges) if edge <= 0.5)
        assert last.counts[half] == 2.0
        assert [sample.value for sample in bodies[1].reading.samples] == [4.0]
