"""GPU activity: the busiest part of each GPU, mean over GPUs, each GPU once."""

import pytest

from collectors.model import Labels
from server.signals.cost import gpu_active_ratio
from server.signals.model import Unknown
from server.signals.window import Gauge
from tests.signals.support import gauge, view


def gpu(uuid: str, index: str = "0", **more: str) -> Labels:
    return tuple(sorted({"gpu": uuid, "index": index, **more}.items()))


def active(*gauges: Gauge) -> float:
    (found,) = gpu_active_ratio.compute(view(*gauges))
    return found.value


def test_the_busiest_part_counts() -> None:
    """Decode: tensor cores 4 %, memory 60 %. Idle beside it: everything at 2 % at most."""
    found = active(
        gauge("gpu_tensor_active_ratio", 0.04, labels=gpu("a")),
        gauge("gpu_dram_active_ratio", 0.60, labels=gpu("a")),
        gauge("gpu_tensor_active_ratio", 0.00, labels=gpu("b", "1")),
        gauge("gpu_dram_active_ratio", 0.02, labels=gpu("b", "1")),
    )
    assert round(found, 9) == 0.31


def test_busy_engines_are_no_work_where_tensor_cores_or_memory_are_reported() -> None:
    """A collective that waits keeps the engines of the first GPU busy; the second GPU reports nothing else."""
    found = active(
        gauge("gpu_engine_active_ratio", 0.99, labels=gpu("a")),
        gauge("gpu_dram_active_ratio", 0.61, labels=gpu("a")),
        gauge("gpu_engine_active_ratio", 0.45, labels=gpu("b", "1")),
    )
    assert found == pytest.approx((0.61 + 0.45) / 2)


def test_utilisation_is_no_activity() -> None:
    """A spinning collective is 100 % utilised: alone it says nothing."""
    answer = gpu_active_ratio.compute(view(gauge("gpu_utilization_ratio", 1.0, labels=gpu("a"))))
    assert isinstance(answer, Unknown)
    assert "DCGM" in answer.why


def test_two_exporters_of_one_gpu_are_one_gpu() -> None:
    same = [gauge("gpu_dram_active_ratio", 0.5, target=name, labels=gpu("a")) for name in ("d0", "d1")]
    assert active(*same, gauge("gpu_dram_active_ratio", 0.2, labels=gpu("b"))) == 0.35


def test_an_index_is_only_its_own_hosts() -> None:
    labels = gpu("0")  # an exporter without UUIDs
    found = active(
        gauge("gpu_dram_active_ratio", 0.8, target="d0", labels=labels),
        gauge("gpu_dram_active_ratio", 0.2, target="d1", labels=labels),
    )
    assert found == 0.5


def test_instances_of_a_split_gpu_count_each() -> None:
    found = active(*[gauge("gpu_dram_active_ratio", part, labels=gpu("a", mig=str(part))) for part in (1.0, 0.5)])
    assert found == 0.75


def test_a_silent_gpu_is_not_an_idle_one() -> None:
    stale = gauge("gpu_dram_active_ratio", 0.0, labels=gpu("a"), age=100.0)
    assert active(stale, gauge("gpu_dram_active_ratio", 0.9, labels=gpu("b"))) == 0.9
    assert isinstance(gpu_active_ratio.compute(view(stale)), Unknown)


def test_it_is_a_mean_over_the_window() -> None:
    assert active(gauge("gpu_dram_active_ratio", 0.0, 1.0, 1.0, labels=gpu("a"))) == 0.5
