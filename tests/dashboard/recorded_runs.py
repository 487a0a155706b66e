"""Recorded bodies as runs of one store, through the real collectors, ingest and driver."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from msgspec import structs

from collectors.generators import dcgm, production_stack, sglang_router, vllm, vllm_router
from collectors.model import Limits, Reading, State, Target
from collectors.trainers import pipeline_rl, trl, verl
from server.store import Store
from tests.collectors._reading import TESTDATA
from tests.collectors.test_pipeline_rl import RUN as PIPELINE_RL
from tests.collectors.test_pipeline_rl import WRITTEN, dated
from tests.driven_run import T0, TRAINER, bench

# Seconds after the last reading. The signals of an instant wait for slower targets.
SETTLED = 15.0
# When the recorded TRL run ended (its last row).
TRL_WRITTEN = 1_795_250_203.0


def fill(store: Store, folder: Path) -> Mapping[str, float]:
    """Writes every run. Run -> the time that its pages are read at."""
    return dict(_runs(store, folder))


def _runs(store: Store, folder: Path) -> Iterator[tuple[str, float]]:
    run = Path(shutil.copytree(PIPELINE_RL, folder / "pipeline_rl"))
    yield _trainer(store, "pipeline_rl", pipeline_rl, dated(run), WRITTEN)
    yield _trainer(store, "trl", trl, TESTDATA / "trl/async", TRL_WRITTEN)
    # Its rows have no time: the file's is that of the last one.
    rows = Path(shutil.copy(TESTDATA / "verl/fully_async/fully-async.jsonl", folder / "fully-async.jsonl"))
    os.utime(rows, (T0, T0))
    yield _trainer(store, "verl", verl, rows, T0)
    routers = {
        "gateway": (sglang_router, "sglang_router/gateway.prom", _GATEWAY_GROWS),
        "vllm_router": (vllm_router, "vllm_router/by_source.prom", _ROUTER_GROWS),
        "production_stack": (production_stack, "production_stack/by_source.prom", _STACK_GROWS),
    }
    for name, (collector, path, grows) in routers.items():
        page = (TESTDATA / path).read_text("utf-8")
        yield _pages(store, name, collector, _before_and_after(page, _grown(page, grows)))
    page = (TESTDATA / "dcgm/by_source.prom").read_text("utf-8")
    yield _pages(store, "dcgm", dcgm, _before_and_after(page, page))
    yield _pages(store, "dcgm_errors", dcgm, _before_and_after(page, _grown(page, _GPU_FAILS)))
    page = (TESTDATA / "vllm/synthetic_2_engines.prom").read_text("utf-8")
    yield _pages(store, "two_engines", vllm, _before_and_after(page, _grown(page, _ENGINES_GROW)))
    recorded = sorted((TESTDATA / "vllm/default").glob("*.prom"), key=lambda file: file.name.split("_")[1])
    pages = [(int(file.name.split("_")[1]) / 1000, file.read_text("utf-8")) for file in recorded]
    yield _pages(store, "vllm", vllm, pages, generator_gpus=2.0)


# Series of a page -> its value after 100 seconds.
_GATEWAY_GROWS = {
    'smg_worker_retries_total{worker_type="regular",endpoint="generate"} 11': 41,
    'smg_worker_retries_exhausted_total{worker_type="regular",endpoint="generate"} 1': 6,
    'endpoint="generate",error_type="backend_error"} 4': 64,
    'error_type="timeout"} 5': 25,
    'smg_http_rate_limit_total{result="rejected"} 7': 17,
}
_ROUTER_GROWS = {'vllm_router_retries_total{route="/generate"} 3': 53}
_GPU = 'gpu="0",UUID="GPU-aaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",Hostname="node-a"'
_GPU_FAILS = {f"DCGM_FI_DEV_XID_ERRORS{{{_GPU}}} 43": 74, f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_GPU}}} 0": 1}
_MODEL = 'model_name="Qwen/Qwen3-30B-A3B-Instruct-2507"'
# Of engine 0: 1,000 looked up, 250 found; 1,000 drafts of 2,000 tokens, of which 800 first and 400 second are accepted.
# Of engine 1: 3,000 looked up, 2,400 found.
_ENGINES_GROW = {
    f'vllm:prefix_cache_queries_total{{engine="0",{_MODEL}}} 9.375836e+06': 9_376_836,
    f'vllm:prefix_cache_hits_total{{engine="0",{_MODEL}}} 1.2175294e+07': 12_175_544,
    f'vllm:prefix_cache_queries_total{{engine="1",{_MODEL}}} 3.2301241e+07': 32_304_241,
    f'vllm:prefix_cache_hits_total{{engine="1",{_MODEL}}} 7.396031e+07': 73_962_710,
    f'vllm:spec_decode_num_drafts_total{{engine="0",{_MODEL}}} 6.0825377e+07': 60_826_377,
    f'vllm:spec_decode_num_draft_tokens_total{{engine="0",{_MODEL}}} 4.0234045e+07': 40_236_045,
    f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",{_MODEL}}} 2.4127884e+07': 24_129_084,
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",{_MODEL},position="0"}} 3.2762079e+07': 32_762_879,
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",{_MODEL},position="1"}} 1.0986393e+07': 10_986_793,
}
_STACK_GROWS = {'error_type="timeout",model="qwen3",server="http://192.0.2.1:8000"} 2.0': 22}


def _before_and_after(before: str, after: str) -> list[tuple[float, str]]:
    """A page each 5 s: 20 times the one, from second 100 on 25 times the other."""
    return [(T0 + 5.0 * n, before if n < 20 else after) for n in range(45)]


def _grown(page: str, grows: Mapping[str, int]) -> str:
    for line, value in grows.items():
        assert page.count(line) == 1, line
        page = page.replace(line, f"{line.rpartition(' ')[0]} {value}")
    return page


def _trainer(store: Store, name: str, module: ModuleType, path: Path, now: float) -> tuple[str, float]:
    with bench(store, name=name) as run:
        read: Reading = module.COLLECTOR.tail(path, {}, Limits(), now)
        run.commit(structs.replace(TRAINER, run=name, collector=module.COLLECTOR.name), read, now)
        run.advance(now + 5)
    return name, now + 5


def _pages(
    store: Store, name: str, module: ModuleType, pages: list[tuple[float, str]], **facts: float
) -> tuple[str, float]:
    state: State = {}
    target = Target(f"{name}-0", name, module.COLLECTOR.name, "generator", url="http://127.0.0.1:1")
    with bench(store, name=name, **facts) as run:
        for now, page in pages:
            state["now"] = now
            run.commit(target, module.parse(page.encode(), state, Limits()), now)
            run.advance(now)
        run.advance(now + SETTLED)
        # Of closed minutes, as the collecting process does.
        store.rollup(name, round((now + SETTLED) * 1000))
    return name, now + SETTLED
