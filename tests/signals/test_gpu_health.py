"""GPU health from DCGM pages through the real collector: figures over GPUs, the GPU at an end, errors that are new."""

from typing import Any

import pytest

from collectors.generators import dcgm
from collectors.model import Limits, State, Target
from dashboard.callbacks import cells
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from server.config import alerts as alerts_config
from server.signals.gpu_health import gpu_fault
from server.store import Store
from tests.collectors._reading import TESTDATA
from tests.driven_run import ON_SQLITE, T0, TRAINER, Bench, bench, steps
from tests.signals.support import gauge, view

EXPORTER = Target("dcgm-a", "run", "dcgm", "generator", url="http://127.0.0.1:1")
MORE = (
    ("DCGM_FI_DEV_GPU_UTIL", "50"), ("DCGM_FI_DEV_FB_USED", "60000"), ("DCGM_FI_DEV_FB_FREE", "20000"),
    ("DCGM_FI_DEV_POWER_USAGE", "600"), ("DCGM_FI_DEV_GPU_TEMP", "87"), ("DCGM_FI_DEV_MEMORY_TEMP", "91"),
    ("DCGM_FI_DEV_SM_CLOCK", "1200"), ("DCGM_FI_PROF_SM_ACTIVE", "0.25"), ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0"),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "120000000000"), ("DCGM_FI_PROF_NVLINK_RX_BYTES", "80000000000"),
)  # fmt: skip
"""Figures of a second GPU, next to the recorded page of the first: 50 % used, 60,000 of 80,000 MiB, 87 C, 1.2 GHz,
120 GB/s sent and 80 GB/s received over NVLink."""


def body(recorded: str, xid: str = "43", ecc: str = "0", remap: str = "") -> str:
    """The page of two GPUs of node-a; errors of the second."""
    at = '{gpu="1",UUID="GPU-ccc",Hostname="node-a"}'
    values = {**dict(MORE), "DCGM_FI_DEV_XID_ERRORS": xid, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ecc}
    values |= {"DCGM_FI_DEV_ROW_REMAP_FAILURE": remap} if remap else {}
    return recorded + "".join(f"{name}{at} {value}\n" for name, value in values.items() if value)


@pytest.fixture
def recorded() -> str:
    return (TESTDATA / "dcgm" / "by_source.prom").read_text("utf-8")


def play(run: Bench, *pages: str, start: float = T0) -> float:
    """A page and a step each 30 s, and ticks up to the last; returns the time."""
    state: State = run.__dict__.setdefault("dcgm", {})
    for number, page in enumerate(pages):
        state["now"] = now = start + 30.0 * number
        step = round((now - T0) / 30.0) + 1
        run.commit(TRAINER, steps(step, step, start=T0 - 30.0), now)
        run.commit(EXPORTER, dcgm.parse(page.encode(), state, Limits()), now)
        run.advance(now + 5.0)
    return now + 5.0


def values(run: Bench, name: str) -> dict[str, float | None]:
    """Series -> value."""
    return {key: one.value for key, one in run.reader.status("run").signals.items() if one.signal == name}


def page_cells(run: Bench, now: float) -> dict[str, Any]:
    page = by_key("generator")
    assert page is not None
    return dict(cells(page, Scope(run.reader, "run", span=Span(now - 600, now, follow=True))))


@ON_SQLITE
def test_figures_over_gpus(store: Store, recorded: str) -> None:
    with bench(store) as run:
        now = play(run, *[body(recorded)] * 3)
        worst = 'gpu="GPU-ccc",host="node-a",index="1",stat="worst"'
        expected = {
            "gpu_fleet_utilization_ratio": {"min": 0.5, "mean": 0.75, "max": 1.0, worst: 0.5},
            # 4845 of 40,535 MiB, and 60,000 of 80,000.
            "gpu_fleet_memory_used_ratio": {"min": 0.119526, "mean": 0.434763, "max": 0.75},
            "gpu_fleet_temperature_celsius": {"min": 61.0, "mean": 74.0, "max": 87.0, worst: 87.0},
            "gpu_fleet_memory_temperature_celsius": {"min": 91.0, "mean": 91.0, "max": 91.0},
            "gpu_fleet_power_watts": {"min": 409.692, "mean": 504.846, "max": 600.0},
            "gpu_fleet_clock_hertz": {"min": 1.2e9, "mean": 1.59e9, "max": 1.98e9, worst: 1.2e9},
            "gpu_fleet_nvlink_bandwidth": {"min": 200.0, "mean": 200.0, "max": 200.0},
            "gpu_fleet_sm_active_ratio": {"min": 0.25, "mean": 0.25, "max": 0.25},
        }
        for name, by_stat in expected.items():
            series = {key if "=" in key else f'stat="{key}"': value for key, value in by_stat.items()}
            named = {f"{name}{{{labels}}}": value for labels, value in series.items()}
            assert values(run, name) == pytest.approx(named, abs=1e-6), name
        found = page_cells(run, now)
        temperature = found["chart.gputemp"]
        assert [(line["label"], line["value"]) for line in temperature["lines"]] == [
            ("mean", 74.0), ("hottest", 87.0), ("hottest memory", 91.0),
        ]  # fmt: skip
        assert (found["gpus"], found["gpus.none"]) == ("ok", "")
        assert found["gpus.note"] == (
            "hottest node-a GPU 1 (87 °C) · least used node-a GPU 1 (50%) · slowest clock node-a GPU 1 (1.2 GHz)"
        )


@ON_SQLITE
def test_without_an_exporter_the_page_says_what_to_add(store: Store) -> None:
    with bench(store) as run:
        run.advance(T0 + 10)
        found = page_cells(run, T0 + 10)
        assert (found["gpus"], found["gpus.note"]) == ("absent", "")
        assert found["gpus.none"] == "No GPU reports it: add a DCGM exporter's :9400/metrics as a target"


FAULT = 'gpu_fault{error="XID 79, GPU fell off the bus",gpu="GPU-ccc",host="node-a",index="1"}'


@ON_SQLITE
def test_a_critical_xid_is_an_alert_and_an_event(store: Store, recorded: str) -> None:
    """43 is an application's error. It is on both GPUs from the first page on."""
    with bench(store, alerts_config.defaults()) as run:
        now = play(run, *[body(recorded)] * 2)
        assert values(run, "gpu_fault") == {"gpu_fault": 0.0}
        now = play(run, body(recorded, "79"), start=now + 25)
        assert values(run, "gpu_fault")[FAULT] == 1.0
        (alert,) = [one for one in run.reader.alerts.active("run") if one.state == "firing"]
        assert (alert.name, alert.severity) == ("GpuFault", "critical")
        assert alert.annotations["summary"] == "GPU 1 node-a of run run: XID 79, GPU fell off the bus"
        found = page_cells(run, now)
        assert found["gpus"] == "critical"
        assert found["gpus.note"].startswith("XID 79, GPU fell off the bus on node-a GPU 1 · hottest ")
        (events,) = [rows for key, rows in found.items() if key.startswith("other_events.")]
        assert [row[1:] for row in events] == [["hardware", "GPU error: XID 79 on node-a GPU 1 GPU-ccc"]]
        # The exporter keeps the code: after 5 minutes the signal is 0, and the alert fires for an hour in all.
        now = play(run, *[body(recorded, "79")] * 12, start=now + 25)
        assert [value for value in values(run, "gpu_fault").values() if value] == []
        assert [one.state for one in run.reader.alerts.active("run")] == ["firing"]


@ON_SQLITE
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ecc": "1"}, "uncorrected ECC error"),
        ({"remap": "1"}, "a memory row could not be replaced"),
        ({"xid": "95"}, "XID 95, uncontained memory error"),
    ],
)
def test_each_error_of_the_hardware(store: Store, recorded: str, change: dict[str, str], error: str) -> None:
    with bench(store) as run:
        play(run, body(recorded), body(recorded, **change))
        assert values(run, "gpu_fault") == {f'gpu_fault{{error="{error}",gpu="GPU-ccc",host="node-a",index="1"}}': 1.0}


@ON_SQLITE
@pytest.mark.parametrize("xid", ["0", "13", "31", "43", "45", "63", "94"])
def test_healthy_runs_and_errors_of_applications_are_silent(store: Store, recorded: str, xid: str) -> None:
    with bench(store, alerts_config.defaults()) as run:
        play(run, body(recorded, "0"), *[body(recorded, xid)] * 3)
        assert values(run, "gpu_fault") == {"gpu_fault": 0.0}
        assert run.reader.alerts.active("run") == []


def fault(*gauges: Any) -> list[tuple[float, str]]:
    answer = gpu_fault.compute(view(*gauges))
    assert isinstance(answer, list)
    return [(value.value, dict(value.labels).get("error", "")) for value in answer]


def test_an_old_error_on_the_first_page_does_not_count() -> None:
    gpu = (("gpu", "a"), ("index", "0"))
    assert fault(gauge("gpu_last_xid", 79, 79, 79, labels=gpu), gauge("gpu_power_watts", 70, 70, 70, labels=gpu)) == [
        (0.0, "")
    ]
    # Without an error a GPU has no series: the first value of a GPU that was read before is new.
    known = gauge("gpu_power_watts", 70, 70, 70, labels=gpu)
    assert fault(gauge("gpu_last_xid", 79, labels=gpu), known) == [(1.0, "XID 79, GPU fell off the bus")]
    counted = (("gpu", "a"), ("index", "0"), ("xid", "48"))
    assert fault(gauge("gpu_xid_errors_total", 1, 1, 2, labels=counted), known) == [
        (1.0, "XID 48, double-bit ECC error")
    ]
