"""Prefill and decode engines: pages that SGLang 0.5.23's own scheduler collector wrote, to the cells of the page."""

from collections.abc import Iterator

import pytest

from collectors.generators import sglang
from collectors.model import Limits, State, Target
from server.signals.engine_state import role_of
from server.signals.model import Origin
from server.store import Store
from tests.collectors._reading import TESTDATA, value
from tests.driven_run import ON_SQLITE, T0, Bench, bench
from tests.signals.test_gpu_health import page_cells, values

PAGES = TESTDATA / "sglang" / "disaggregated"
ROLES = {"p0": "prefill", "d0": "decode", "d1": "decode"}
SECONDS = 50


def play(run: Bench, name_of_run: str = "run") -> float:
    """The first page of each engine, then the second one for 45 s."""
    states: dict[str, State] = {name: {} for name in ROLES}
    for at in range(0, SECONDS + 1, 5):
        for name, role in ROLES.items():
            body = (PAGES / f"{role}_{min(at, 1)}.prom").read_bytes()
            of = Target(name, name_of_run, "sglang", "generator", url="http://127.0.0.1:1")
            run.commit(of, sglang.parse(body, states[name], Limits()), T0 + at)
    run.advance(T0 + SECONDS)
    return T0 + SECONDS


@pytest.fixture
def run(store: Store) -> Iterator[Bench]:
    with bench(store) as made:
        yield made


@ON_SQLITE
def test_load_speed_and_handover_by_role(run: Bench) -> None:
    """Prefill: 2, then 3 requests run and 10, then 12 wait; 80,000 prompt tokens more, 20,000 of them cached. Each of
    two decode engines: 44, then 48 requests; 60,000 tokens more. Four transfers of 40, 60, 80 and 220 ms."""
    now = play(run)
    # The first page holds for 5 of 50 seconds.
    assert values(run, "generator_role_requests") == pytest.approx(
        {
            'generator_role_requests{role="prefill",state="running"}': 2.9,
            'generator_role_requests{role="prefill",state="waiting"}': 11.8,
            'generator_role_requests{role="decode",state="running"}': 95.2,
            'generator_role_requests{role="decode",state="waiting"}': 0.0,
        }
    )
    assert values(run, "generator_role_kv_cache_ratio") == pytest.approx(
        {
            'generator_role_kv_cache_ratio{role="prefill"}': 0.398,
            'generator_role_kv_cache_ratio{role="decode"}': 0.827,
        }
    )
    assert values(run, "generator_role_tokens_per_second") == pytest.approx(
        {
            'generator_role_tokens_per_second{role="prefill"}': 80_000 / 50,
            'generator_role_tokens_per_second{role="decode"}': 2 * 60_000 / 50,
        }
    )
    assert values(run, "generator_handover_requests") == pytest.approx(
        {
            'generator_handover_requests{queue="bootstrap"}': 4.9,
            'generator_handover_requests{queue="sending"}': 6.9,
            'generator_handover_requests{queue="allocation"}': 2 * 3.9,
            'generator_handover_requests{queue="receiving"}': 2 * 5.9,
        }
    )
    assert run.value('kv_transfer_seconds{stat="mean"}') == pytest.approx(0.1)
    found = page_cells(run, now)
    assert (found["roles"], found["roles.note"]) == ("ok", "1 prefill engine · 2 decode engines")
    shown = {found[f"engine_rows.{i}"]["name"]: found[f"engine_rows.{i}"] for i in range(3)}
    assert {name: row["role"] for name, row in shown.items()} == ROLES
    assert [line["value"] for line in found["chart.rotokens"]["lines"]] == pytest.approx([1600.0, 2400.0])


@ON_SQLITE
def test_a_prefill_engine_is_no_outlier_among_decode_engines(run: Bench) -> None:
    play(run)
    # The decode engines are alike; the only prefill engine has no other to be compared with.
    assert values(run, "generator_outlier_ratio") == pytest.approx(
        {'generator_outlier_ratio{side="idlest"}': 1.0, 'generator_outlier_ratio{side="busiest"}': 1.0}
    )
    assert page_cells(run, T0 + SECONDS)["outliers.p"] == "None"


def test_an_engine_that_does_both_has_no_role() -> None:
    unified = (TESTDATA / "sglang/driven/metrics_1795248877036_load.prom").read_bytes()
    for body, expected in (
        (unified, None),
        ((PAGES / "prefill_1.prom").read_bytes(), 1),
        ((PAGES / "decode_1.prom").read_bytes(), 0),
    ):
        reading = sglang.parse(body, {}, Limits())
        found = [one.value for one in reading.samples if one.metric == "generator_prefill_only"]
        assert found == ([] if expected is None else [expected])
    assert value(reading, "generator_requests_running") == 48


@pytest.mark.parametrize(
    ("reported", "listed", "role"),
    [
        (1.0, "", "prefill"), (0.0, "", "decode"), (None, "prefill", "prefill"), (None, "decode", "decode"),
        # The engine itself knows best; "regular" workers do both.
        (0.0, "prefill", "decode"), (None, "regular", ""), (None, "", ""),
    ],
)  # fmt: skip
def test_role_of_an_engine(reported: float | None, listed: str, role: str) -> None:
    labels = (("worker_type", listed),) if listed else ()
    assert role_of(reported, Origin("router", "", labels, "k")) == role
    assert role_of(reported, None) == (role if reported is not None else "")
