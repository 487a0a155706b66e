"""Whose page is it? Every page there is, against every collector of engines: exactly one knows it."""

from pathlib import Path

import pytest

import collectors
from collectors.detect import detect_page
from tests.collectors._reading import TESTDATA

ENGINES = ("dynamo", "sglang", "tensorrt_llm", "triton", "vllm")
PAGES = sorted(path for name in ENGINES for path in (TESTDATA / name).glob("**/*.prom"))
BELONGS = {path: path.relative_to(TESTDATA).parts[0] for path in PAGES}
BELONGS[TESTDATA / "exposition" / "sglang_synthetic_dp2.prom"] = "sglang"
# A line each of pages that are not recorded, in every spelling.
LINES = {
    'vllm_num_requests_running{engine="0",worker_addr="http://a:1"} 1\n': "vllm",
    'sglang_num_running_reqs{dp_rank="0",worker_addr="http://a:1"} 1\n': "sglang",
    'ray_sglang_token_usage{ReplicaId="a"} 1\n': "sglang",
    'sglang:generation_tokens_total{model_name="m"} 1\n': "sglang",
    'trtllm:num_requests_running{model_name="m"} 1\n': "tensorrt_llm",
    'sglang:num_running_reqs{dynamo_component="backend",tp_rank="0"} 1\n': "dynamo",
    'dynamo_frontend_inflight_requests{model="m"} 1\n': "dynamo",
}
STRANGERS = (
    'vllm:num_requests_running{server="http://a:1"} 1\n',  # a router that borrows the names
    'nv_inference_request_success{model="m",version="1"} 1\n',
    "process_cpu_seconds_total 5\n",
    '[{"iter": 1}]',
    "",
)


def known_by(body: bytes) -> list[str]:
    pages = {name: one.matches_page for name, one in collectors.load().items() if one.matches_page is not None}
    return [name for name, matches in pages.items() if matches(body)]


@pytest.mark.parametrize("path", BELONGS, ids=lambda path: "/".join(path.parts[-2:]))
def test_every_page_is_known_by_its_collector_only(path: Path) -> None:
    body = path.read_bytes()
    assert known_by(body) == [BELONGS[path]] == [detect_page(body)]


@pytest.mark.parametrize("line", LINES)
def test_every_spelling(line: str) -> None:
    assert known_by(line.encode()) == [LINES[line]]


@pytest.mark.parametrize("text", STRANGERS)
def test_strangers(text: str) -> None:
    assert not set(known_by(text.encode())) & set(ENGINES)
