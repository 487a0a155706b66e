"""Ray's page of a node: MiB that are called bytes, gauges missing from every second page, engines left to others."""

from collectors.detect import detect_page
from collectors.generators import ray_node
from collectors.model import Limits, Reading, Target
from server.derive.driver import carry_of
from server.signals.window import Gauge
from tests.collectors._reading import TESTDATA, page_json

PAGE = (TESTDATA / "ray_node" / "by_source.prom").read_bytes()
ZERO = (("gpu", "0"), ("host", "192.0.2.2"), ("index", "0"))


def read(body: bytes) -> Reading:
    return ray_node.parse(body, {}, Limits())


def test_the_page_as_expected() -> None:
    reading = read(PAGE)
    gpu, replica = '{gpu="0",host="192.0.2.2",index="0"}', '{application="llm",deployment="vLLM:qwen3",worker="r7ab"}'
    assert page_json(reading)["samples"] == {
        f"gpu_utilization_ratio{gpu}": 0.75,
        'gpu_utilization_ratio{gpu="1",host="192.0.2.2",index="1"}': 0,
        f"gpu_memory_used_bytes{gpu}": 60 * 2**30,  # 61,440 MiB
        f"gpu_memory_free_bytes{gpu}": 20 * 2**30,
        f"gpu_power_watts{gpu}": 412.5,
        f"gpu_temperature_celsius{gpu}": 55,
        'router_requests_queued{application="llm",deployment="vLLM:qwen3"}': 17,  # 14 and 3 of two callers
        f"router_requests_in_flight{replica}": 128,  # of the replica; the callers' 128 are the same
        f"router_worker_healthy{replica}": 1,
        f"router_requests_total{replica}": 540,  # two routes; 499 is the older exporter's double
    }
    assert reading.facts == {"gpu_type": "NVIDIA H100 80GB HBM3"}
    assert reading.unmapped == {"node_gpu_fan_percent": 1}


def test_gauges_missing_from_every_second_page_are_carried() -> None:
    between = b"".join(line for line in PAGE.splitlines(keepends=True) if b"ray_node_g" not in line)
    target = Target("node", "run", "ray_node", "generator", url="http://node:8080", interval_seconds=5.0)
    carried = carry_of({"node": (target, ray_node.COLLECTOR.report_seconds)})("node")
    assert carried == 30  # three reports of Ray's, not of ours
    gauge = Gauge("node", "gpu_utilization_ratio", ZERO, carried)
    for number in range(6):
        found = [
            s.value
            for s in read(between if number % 2 else PAGE).samples
            if (s.metric, s.labels) == (gauge.metric, ZERO)
        ]
        assert found == ([] if number % 2 else [0.75])
        for one in found:
            gauge.add(1000.0 + 5.0 * number, one)
        assert gauge.fresh(1000.0 + 5.0 * number)
        assert gauge.last == 0.75
    assert not gauge.fresh(1020.0 + carried + 1)


def test_a_node_without_gpus_is_no_error() -> None:
    assert read(b'ray_node_cpu_utilization{ip="192.0.2.2"} 5\n').samples == ()


def test_a_page_with_engines_is_theirs_unless_named() -> None:
    assert detect_page(PAGE) == "ray_node"
    engine = b'ray_vllm_num_requests_running{ReplicaId="r",engine="0"} 3\n'
    assert detect_page(PAGE + engine) == "vllm"
    assert len(read(PAGE + engine).samples) == len(read(PAGE).samples)
