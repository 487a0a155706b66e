"""Triton's page: what counts is in a label, counters have no suffix, one request counts once per model."""

from collectors.detect import detect_page
from collectors.generators import triton
from collectors.model import Limits
from tests.collectors._reading import TESTDATA, page_json, value

PAGE = TESTDATA / "triton" / "by_source.prom"


def test_the_page_as_expected() -> None:
    found = page_json(triton.parse(PAGE.read_bytes(), {}, Limits()))
    engine = '{engine="tensorrt_llm:1"}'
    assert found["samples"] == {
        f"generator_requests_running{engine}": 48,  # scheduled; "active" counts the waiting ones too
        f"generator_requests_waiting{engine}": 7,
        'generator_requests_waiting_by_reason{engine="tensorrt_llm:1",reason="paused"}': 2,
        f"generator_request_limit{engine}": 64,
        f"kv_cache_usage_ratio{engine}": 0.875,
        f"kv_cache_capacity_tokens{engine}": 25_600,  # 400 blocks of 64
        f"kv_cache_used_tokens{engine}": 22_400,
        'generator_requests_finished_total{engine="tensorrt_llm:1",reason="success"}': 498,
        'generator_requests_finished_total{engine="tensorrt_llm:1",reason="error"}': 5,
    }
    assert "nv_trt_llm_request_metrics context" in found["unmapped"]
    assert "nv_gpu_utilization" not in found["unmapped"]


def test_other_models_of_the_ensemble_do_not_count_again() -> None:
    text = 'nv_trt_llm_general_metrics{general_type="timestamp"} 1\n' + "".join(
        f'nv_inference_request_success{{model="{model}",version="1"}} 100\n'
        for model in ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")
    )
    reading = triton.parse(text.encode(), {}, Limits())
    assert sum(s.value for s in reading.samples) == 100


def test_two_versions_are_two_engines() -> None:
    text = "".join(
        f'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="scheduled",version="{version}"}} {version}\n'
        for version in (1, 2)
    )
    reading = triton.parse(text.encode(), {}, Limits())
    assert value(reading, "generator_requests_running", (("engine", "tensorrt_llm:2"),)) == 2


def test_a_triton_without_the_backend_is_not_ours() -> None:
    assert detect_page(b'nv_inference_request_success{model="m",version="1"} 5\n') is None
