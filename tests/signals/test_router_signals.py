"""Routers and speculative decoding: recorded pages through the real collectors to the cells of the Generator page."""

import re

import pytest

from collectors.generators import sglang, sglang_router, vllm, vllm_router
from collectors.model import Limits, Reading, State, Target
from server.store import Store
from tests.collectors._reading import TESTDATA
from tests.driven_run import ON_SQLITE, T0, Bench, bench
from tests.signals.test_gpu_health import page_cells, values

GATEWAY = (TESTDATA / "sglang_router" / "gateway.prom").read_text("utf-8")
VLLM_ROUTER = (TESTDATA / "vllm_router" / "by_source.prom").read_text("utf-8")


def target(name: str) -> Target:
    return Target(name, "run", name, "generator", url="http://127.0.0.1:1")


def grown(page: str, **more: int) -> str:
    """The page with its counters of these names increased, whatever their labels; of several series the first."""
    for name, by in more.items():
        page = re.sub(
            rf"^(\w*?{name}(?:\{{[^}}]*\}})?) (\d+)$",
            lambda match: f"{match[1]} {int(match[2]) + by}",  # noqa: B023 - used at once
            page,
            count=1,
            flags=re.MULTILINE,
        )
    return page


def play(run: Bench, of: Target, *pages: Reading) -> float:
    """A page each 60 s."""
    for number, page in enumerate(pages):
        now = T0 + 60.0 * number
        for at in range(12):
            run.commit(of, page, now + 5.0 * at)
        run.advance(now + 55.0)
    return now + 55.0


@ON_SQLITE
def test_a_gateway(store: Store) -> None:
    """Two workers of which one is healthy; a third was removed. Of 12 retries in the second minute 6 were given up."""
    state: State = {}
    later = grown(GATEWAY, worker_retries_total=12, worker_retries_exhausted_total=6, worker_errors_total=24)
    pages = [sglang_router.parse(page.encode(), state, Limits()) for page in (GATEWAY, later)]
    with bench(store) as run:
        now = play(run, target("sglang_router"), *pages)
        assert values(run, "router_requests") == {
            'router_requests{state="queued"}': 41.0,
            'router_requests{state="in_flight"}': 259.0,
        }
        assert values(run, "router_workers_now") == {
            'router_workers_now{state="registered"}': 2.0,
            'router_workers_now{state="healthy"}': 1.0,
            'router_workers_now{state="circuit_open"}': 0.0,
        }
        # Over the 115 s between the first page and the last.
        assert values(run, "router_retries_per_second") == pytest.approx(
            {
                'router_retries_per_second{outcome="retried"}': 12 / 115,
                'router_retries_per_second{outcome="exhausted"}': 6 / 115,
            }
        )
        errors = values(run, "router_errors_per_second")
        assert errors['router_errors_per_second{of="worker"}'] == pytest.approx(24 / 115)
        assert errors['router_errors_per_second{of="request"}'] == 0.0
        assert run.state("router_cache_hit_ratio") == "unknown"
        found = page_cells(run, now)
        assert (found["router"], found["router.note"]) == ("critical", "1 of 2 workers healthy")
        assert [line.get("value") for line in found["chart.rreq"]["lines"]] == [259.0, 41.0]


@ON_SQLITE
def test_a_router_that_knows_prefixes(store: Store) -> None:
    """30 hits more and 10 misses more; one worker of two is behind an open circuit."""
    first = VLLM_ROUTER + "# TYPE vllm_router_cache_misses_total counter\nvllm_router_cache_misses_total 5\n"
    state: State = {}
    pages = [first, grown(first, cache_hits_total=30, cache_misses_total=10)]
    with bench(store) as run:
        now = play(run, target("vllm_router"), *(vllm_router.parse(page.encode(), state, Limits()) for page in pages))
        assert run.value("router_cache_hit_ratio") == 0.75
        assert values(run, "router_workers_now")['router_workers_now{state="circuit_open"}'] == 1.0
        assert page_cells(run, now)["router.note"] == (
            "1 of 2 workers healthy · 1 with an open circuit · 75% sent where their prefix is cached"
        )


DRAFTS = """\
vllm:num_requests_running{{engine="0"}} 4
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {tokens}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}
"""


@ON_SQLITE
def test_accepted_drafts(store: Store) -> None:
    """1,000 drafts of 2 tokens: 800 first and 400 second ones accepted, 1,200 of 2,000; 2.2 tokens a step."""
    state: State = {}
    pages = [
        DRAFTS.format(drafts=50, tokens=100, accepted=70, first=40, second=30),
        DRAFTS.format(drafts=1050, tokens=2100, accepted=1270, first=840, second=430),
    ]
    with bench(store) as run:
        now = play(run, target("vllm"), *(vllm.parse(page.encode(), state, Limits()) for page in pages))
        assert run.value("speculative_accepted_ratio") == 0.6
        assert run.value("speculative_accepted_length_tokens") == 2.2
        assert values(run, "speculative_position_ratio") == {
            'speculative_position_ratio{position="0"}': 0.8,
            'speculative_position_ratio{position="1"}': 0.4,
        }
        found = page_cells(run, now)
        assert found["speculative"] == "ok"
        assert [line.get("value") for line in found["chart.gspec"]["lines"]] == [0.6, 0.8, 0.4, None]


@ON_SQLITE
@pytest.mark.parametrize(("length", "expected"), [("0.0", None), ("2.6", 2.6)])
def test_sglang_that_does_not_speculate_reports_zero(store: Store, length: str, expected: float | None) -> None:
    page = (TESTDATA / "sglang" / "driven" / "metrics_1795248877036_load.prom").read_text("utf-8")
    page = re.sub(r"^(sglang:spec_accept_length\{.*\}) 0\.0$", rf"\1 {length}", page, flags=re.MULTILINE)
    with bench(store) as run:
        now = play(run, target("sglang"), sglang.parse(page.encode(), {}, Limits()))
        assert run.value("speculative_accepted_length_tokens") == expected
        assert page_cells(run, now)["speculative"] == ("absent" if expected is None else "ok")


@ON_SQLITE
def test_without_router_and_drafts(store: Store) -> None:
    with bench(store) as run:
        run.advance(T0 + 10)
        found = page_cells(run, T0 + 10)
        assert (found["router"], found["speculative"]) == ("absent", "absent")
        assert found["router.none"].startswith("No router reports: add its metrics port as a target (sglang-router and")


ITERATIONS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0"}} {tokens}
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="8"}} {small}
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf"}} {count}
vllm:iteration_tokens_total_sum{{engine="0"}} {total}
vllm:iteration_tokens_total_count{{engine="0"}} {count}
"""


@ON_SQLITE
def test_tokens_per_gpu_and_per_iteration(store: Store) -> None:
    """11,500 tokens in 115 s are 100 a second, on 4 GPUs 25; 500 iterations more computed 12,000 tokens, 24 each."""
    state: State = {}
    pages = [
        ITERATIONS.format(tokens=0, small=0, count=10, total=100),
        ITERATIONS.format(tokens=11_500, small=0, count=510, total=12_100),
    ]
    with bench(store, generator_gpus=4.0) as run:
        now = play(run, target("vllm"), *(vllm.parse(page.encode(), state, Limits()) for page in pages))
        assert run.value("generator_gpu_tokens_per_second") == 25.0
        assert run.value('generator_iteration_tokens{stat="mean"}') == 24.0
        found = page_cells(run, now)
        assert found["chart.giter"]["lines"][0]["value"] == 24.0
        assert found["card.ge_tokens"]["note"] == "per GPU 25 tokens/s"
