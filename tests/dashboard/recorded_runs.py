"""Recorded bodies as runs of one store, through the real collectors, ingest and driver."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

from collectors.generators import dcgm, production_stack, sglang_router, vllm, vllm_router
from collectors.model import Limits, Reading, State, Target
from collectors.rollouts import art_rollouts
from collectors.trainers import pipeline_rl, trl, verl
from server.push import metrics
from server.push.records import Kind, parse, records_of
from server.store import Store
from tests.collectors._reading import TESTDATA
from tests.collectors.test_pipeline_rl import RUN as PIPELINE_RL
from tests.collectors.test_pipeline_rl import WRITTEN, dated
from tests.driven_run import T0, TRAINER, bench
from tests.signals import test_role_signals

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
    with bench(store, name="prefill_decode") as bench_of:
        yield "prefill_decode", test_role_signals.play(bench_of, "prefill_decode")
    yield _sandboxes(store, rows)
    yield _art(store, Path(shutil.copytree(TESTDATA / "art_rollouts/pipeline", folder / "art")))
    yield _pushed(store)
    yield _drifted(store)


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


def _read(now: float, body: str, step: int | None = None) -> Reading:
    """A body as it is pushed to `/api/v1/write`."""
    parsed = metrics.parse(body.encode(), "run", now, step)
    assert not parsed.refused
    return parsed.body.reading


def _records(kind: Kind, now: float, items: list[dict[str, Any]]) -> list[Any]:
    """Records as they are pushed, one a line."""
    accepted = parse(b"\n".join(json.dumps(item).encode() for item in items), kind, now)
    assert not accepted.refused
    made, lost, _ = records_of(kind, accepted.lines, now)
    assert not lost
    return made


def _sandboxes(store: Store, rows: Path) -> tuple[str, float]:
    """The recorded verl run, whose tools are timed. No recorded body has creations, refusals and limits of one provider
    or times of commands: these are pushed.

    Every 10 s of 300 s a sandbox is requested: of 30 the first 21 are ready after 12 s, 6 are refused, 3 are starting.
    """
    name, provider, pushed = "boxes", "e2b", Target("push", "boxes", "push", "sandbox", interval_seconds=1800.0)
    boxes: list[dict[str, Any]] = []
    for n in range(30):
        box: dict[str, Any] = {"id": f"sb-{n}", "provider": provider, "requested_at": T0 - 295 + 10 * n}
        if n < 21:
            box |= {"ready_at": box["requested_at"] + 12, "state": "running"}
        elif n < 27:
            box |= {"state": "failed", "cause": "rate_limit"}
        boxes.append(box)
    with bench(store, name=name) as run:
        run.commit(
            structs.replace(TRAINER, run=name, collector="verl"), verl.COLLECTOR.tail(rows, {}, Limits(), T0), T0
        )
        for now, commands in ((T0 - 100, (0, 0, 0)), (T0, (50, 90, 100))):
            run.commit(pushed, _read(now, _COMMANDS.format(*commands)), now)
        run.commit(pushed, Reading(sandboxes=tuple(_records("sandboxes", T0, boxes))), T0)
        run.advance(T0 + 4)
    return name, T0 + 4


_COMMANDS = """\
sandbox_quota_limit{{resource="creates_per_second"}} 0.5
sandbox_quota_limit{{resource="starting"}} 4
sandbox_quota_used{{resource="starting"}} 3
sandbox_exec_seconds_bucket{{le="0.1"}} {0}
sandbox_exec_seconds_bucket{{le="1"}} {1}
sandbox_exec_seconds_bucket{{le="10"}} {2}
sandbox_exec_seconds_bucket{{le="+Inf"}} {2}
sandbox_exec_seconds_count {2}
sandbox_exec_seconds_sum {2}
"""


def _art(store: Store, folder: Path) -> tuple[str, float]:
    for file in folder.rglob("*.parquet"):
        os.utime(file, (T0 - 60, T0 - 60))
    with bench(store, name="art") as run:
        target = structs.replace(TRAINER, name="rollouts", run="art", collector="art_rollouts", path=str(folder))
        run.commit(target, art_rollouts.COLLECTOR.tail(folder, {}, Limits(), T0), T0)
        run.advance(T0 + 5)
    return "art", T0 + 5


VERSIONS, SECONDS = 30, 10.0


def _pushed(store: Store) -> tuple[str, float]:
    """Every 10 s a step of 8 rollouts of 100 tokens: a group of math of which half is solved, and a group of code which
    is solved as a whole and has no gradient. Two rollouts of code, of 300 tokens, are too old.
    """
    name, target = "pushed", Target("push", "pushed", "push", "trainer", interval_seconds=1800.0)
    with bench(store, name=name) as run:
        for version in range(1, VERSIONS + 1):
            now, items = T0 + SECONDS * version, []
            for n in range(10):
                kind = "math" if n < 4 else "code"
                item: dict[str, Any] = {
                    "rollout_id": f"{version}/{n}", "group_id": f"{version}/{n // 4}", "group_size": 4 if n < 8 else 2,
                    "environment": kind, "version_start": version, "dispatched_at": now - 9, "started_at": now - 9,
                    "finished_at": now - 2, "scored_at": now - 2, "reward": float(n % 2) if n < 4 else 1.0,
                    "response_tokens": 100 if n < 8 else 300,
                }  # fmt: skip
                used = {"version_consumed": version, "consumed_at": now} if n < 8 else {"exit": "stale"}
                items.append(item | used)
            found = _records("rollouts", now, items)
            run.records(target, Reading(rollouts=tuple(found)), now)
            run.commit(target, _read(now, f"trainer_step_seconds {SECONDS}\ntrainer_samples 8\n", version), now)
            run.advance(now)
        run.advance(now + SETTLED)
    return name, now + SETTLED


def _drifted(store: Store) -> tuple[str, float]:
    """60 steps. From step 41 on responses have 2,000 tokens instead of 1,000 and 6 tool calls instead of 2. Prompts
    have 500 tokens, rollouts 4 turns.
    """
    name, target = "drifted", Target("push", "drifted", "push", "trainer", interval_seconds=1800.0)
    with bench(store, name=name) as run:
        for step in range(1, 61):
            now, late = T0 + SECONDS * step, step > 40
            body = f"response_tokens_mean {2000 if late else 1000}\ntool_calls_mean {6 if late else 2}\n"
            body += f"prompt_tokens_mean 500\nturns_mean 4\ntrainer_step_seconds {SECONDS}\n"
            run.commit(target, _read(now, body, step), now)
            run.advance(now)
        run.advance(now + SETTLED)
    return name, now + SETTLED


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
