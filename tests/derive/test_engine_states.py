"""Recorded pages of a real vLLM through the whole path: what pauses is not hung; restarts lose nothing."""

from pathlib import Path

import pytest

from collectors.generators import vllm
from collectors.model import Limits, Reading, State
from server import signals
from server.derive.deriver import Deriver
from server.signals.model import Unknown
from server.store import Store
from tests.driven_run import ENGINE, T0, Bench, bench

RECORDED = Path(__file__).parent.parent / "testdata" / "vllm"
NAMED = 'generator_engine_state{engine="0",state="%s",target="engine-0"}'


def pages(folder: str) -> list[Reading]:
    state: State = {}
    files = sorted((RECORDED / folder).glob("metrics_*.prom"))
    return [vllm.parse(path.read_bytes(), state, Limits()) for path in files]


def states(run: Bench) -> dict[str, float]:
    found = (one for one in run.reader.status("run").signals.values() if one.signal == "generator_engines")
    return {one.labels["state"]: one.value for one in found if one.value}


def show(run: Bench, page: Reading, first: int, last: int) -> None:
    """The same page every 5 s, from `first` to `last` s."""
    for at in range(first, last + 1, 5):
        run.commit(ENGINE, page, T0 + at)
        run.advance(T0 + at)


def test_an_engine_that_is_paused_for_long_is_paused_and_not_hung(store: Store) -> None:
    """Load, /pause, /resume. The gauges freeze at 128 running; only the calls its server counts tell why."""
    load, paused, _, resumed, after = pages("pause")
    with bench(store) as run:
        show(run, load, 0, 0)
        assert states(run) == {"up": 1.0}
        show(run, paused, 5, 90)
        assert states(run) == {"paused": 1.0} and run.value(NAMED % "paused") == 1.0
        assert run.value('generator_frozen{target="engine-0"}') == 0.0
        show(run, resumed, 95, 95)
        show(run, after, 100, 100)
        assert states(run) == {"up": 1.0}
        assert run.value(NAMED % "paused") is None


def test_an_engine_that_died_behind_its_server_is_hung_and_then_down(store: Store) -> None:
    """The API server goes on to answer with the last numbers of its dead core; then it ends, too."""
    load = pages("pause")[0]
    with bench(store) as run:
        show(run, load, 0, 55)
        assert states(run) == {"up": 1.0}  # a minute must be over: a prefill may take as long
        show(run, load, 60, 60)
        assert states(run) == {"hung": 1.0} and run.value(NAMED % "hung") == 1.0
        assert run.value('generator_frozen{target="engine-0"}') == 1.0
        for at in (65, 90):  # at 90 none of its numbers is fresh any more
            run.fail(ENGINE, "unreachable", "connection refused", T0 + at)
            run.advance(T0 + at)
            assert states(run) == {"down": 1.0} and run.value(NAMED % "down") == 1.0


def test_a_recorded_pause_is_time_without_work(store: Store) -> None:
    """Pages of 116.98 (load), 118.51 and 121.07 (paused), 123.68 s (resumed): told for 123.675 - 118.505 s.

    The calls themselves took 0.03 s.
    """
    with bench(store) as run:
        for at, shown in zip((116.982, 118.505, 121.072, 123.675, 136.112), pages("pause"), strict=True):
            run.commit(ENGINE, shown, T0 + at)
        run.advance(T0 + 140)
        assert run.value('generator_weight_stall_seconds{stat="max"}') == pytest.approx(5.170)


LATENCIES = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_seconds",
    "generator_queue_seconds",
)


def test_a_restart_changes_no_quantile(store: Store) -> None:
    """Killed within a minute: the store's minutes and readings go on to the numbers of one that was never killed."""
    recorded = pages("default")
    never = Deriver(signals.load(), lambda _: 15.0)
    for n, page in enumerate(recorded):
        for item in page.histograms:
            never.sample(T0 + 10 * n, "engine-0", item.metric, item.labels, item)
    for first, last in ((0, 10), (10, len(recorded))):
        with bench(store) as run:
            for n in range(first, last):
                run.commit(ENGINE, recorded[n], T0 + 10 * n)
                run.advance(T0 + 10 * n)
            if last == len(recorded):
                found = {
                    one.name: one.value for one in run.reader.status("run").signals.values() if one.signal in LATENCIES
                }
    expected = {}
    for name, _, answer in never.tick(T0 + 10 * (len(recorded) - 1)):
        if name in LATENCIES:
            assert not isinstance(answer, Unknown)
            expected |= {f'{name}{{stat="{one.labels[0][1]}"}}': one.value for one in answer}  # type: ignore[union-attr]
    assert len(expected) == 16
    assert {name: value for name, value in found.items() if value is not None} == pytest.approx(expected)


def test_a_recorded_window_has_the_sums_of_its_first_and_last_page(store: Store) -> None:
    """1,273 requests ended between them: each `_sum` and `_count` of both pages, read off by eye."""
    with bench(store) as run:
        for n, page in enumerate(pages("default")):
            run.commit(ENGINE, page, T0 + 5 * n)
        run.advance(T0 + 105)
        assert run.value('e2e_request_seconds{stat="mean"}') == pytest.approx((11447.7363431 - 1133.9794190) / 1273)
        assert run.value('time_to_first_token_seconds{stat="mean"}') == pytest.approx(
            (9061.8922298 - 619.5035114) / (1716 - 438)
        )
        assert run.value('inter_token_latency_seconds{stat="mean"}') == pytest.approx(
            (2414.3550868 - 525.6104548) / (234216 - 59524)
        )
        assert run.value('generator_finish_ratio{reason="length"}') == pytest.approx((1622 - 411) / 1273)
        assert run.value("generator_prefill_decode_ratio") == pytest.approx((129175 - 32772) / (235932 - 59962))
