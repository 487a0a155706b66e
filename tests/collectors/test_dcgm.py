"""DCGM: units, blanks that are no numbers, and errors that are news exactly once."""

import pytest

from collectors.detect import detect_page
from collectors.generators import dcgm
from collectors.model import Limits, Reading, State
from tests.collectors._reading import TESTDATA, page_json, value

PAGE = (TESTDATA / "dcgm" / "by_source.prom").read_bytes()
MIG = (TESTDATA / "dcgm" / "mig_kubernetes.prom").read_bytes()
GPU = (("gpu", "GPU-aaa"), ("host", "node-a"), ("index", "0"))


def read(body: bytes | str, state: State | None = None) -> Reading:
    return dcgm.parse(body.encode() if isinstance(body, str) else body, state if state is not None else {}, Limits())


def test_the_page_as_expected() -> None:
    reading = read(PAGE)
    at = '{gpu="GPU-aaa",host="node-a",index="0"}'
    assert page_json(reading)["samples"] == {
        f"gpu_engine_active_ratio{at}": 0.995,
        f"gpu_tensor_active_ratio{at}": 0.04,
        f"gpu_dram_active_ratio{at}": 0.61,
        f"gpu_utilization_ratio{at}": 1,  # percent
        f"gpu_memory_used_bytes{at}": 4845 * 1_048_576,
        f"gpu_memory_free_bytes{at}": 35_690 * 1_048_576,
        f"gpu_power_watts{at}": 409.692,
        f"gpu_energy_joules_total{at}": pytest.approx(251_885_217.371),
        f"gpu_temperature_celsius{at}": 61,
        f"gpu_sm_clock_hertz{at}": 1.98e9,
        f"gpu_last_xid{at}": 43,
        'gpu_ecc_errors_total{gpu="GPU-aaa",host="node-a",index="0",kind="corrected"}': 12,  # its lifetime: 40
        'gpu_ecc_errors_total{gpu="GPU-aaa",host="node-a",index="0",kind="uncorrected"}': 0,
        'gpu_remapped_rows_total{gpu="GPU-aaa",host="node-a",index="0",kind="uncorrected"}': 0,
    }
    assert reading.facts == {"gpu_type": "NVIDIA H200"}
    assert reading.unmapped == {"DCGM_FI_DEV_MEM_COPY_UTIL": 1, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 1}


def test_instances_of_a_split_gpu_stay_apart_and_names_differ_by_exporter() -> None:
    reading = read(MIG)
    found = {s.labels: s.value for s in reading.samples if s.metric == "gpu_dram_active_ratio"}
    base = (("gpu", "GPU-aaa"), ("host", "node-b"), ("index", "0"))  # "hostname" here, "Hostname" there
    assert found == {(*base, ("mig", "3")): 0.5, (*base, ("mig", "5")): 0.25}
    assert reading.facts == {}  # two kinds of GPU: no one name is true


BLANKS = [
    *(9_223_372_036_854_775_792 + more for more in range(4)),  # 64-bit integers
    *(2_147_483_632 + more for more in range(4)),  # 32-bit
    *(f"{140_737_488_355_328 + more}.000000" for more in range(4)),  # floats
]


@pytest.mark.parametrize("family", ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_DRAM_ACTIVE"])
@pytest.mark.parametrize("blank", BLANKS)
def test_blanks_are_neither_numbers_nor_zero(family: str, blank: object) -> None:
    at = '{gpu="0",UUID="GPU-aaa"}'
    reading = read(f"{family}{at} {blank}\nDCGM_FI_DEV_GPU_TEMP{at} 50\n")
    assert [s.metric for s in reading.samples] == ["gpu_temperature_celsius"]


@pytest.mark.parametrize("megabytes", [0, 80 * 1024, 200_000])
def test_real_values_are_no_blanks(megabytes: int) -> None:
    reading = read(f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-aaa"}} {megabytes}\n')
    assert [s.value for s in reading.samples] == [megabytes * 1_048_576]


def xid(code: object, gpu: str = "GPU-aaa", more: str = "") -> str:
    """A page: a temperature, and the XID where there is one."""
    at = f'gpu="0",UUID="{gpu}",Hostname="node-a"'
    last = "" if code is None else f"DCGM_FI_DEV_XID_ERRORS{{{at}{more}}} {code}\n"
    return f"DCGM_FI_DEV_GPU_TEMP{{{at}}} 50\n{last}"


def story(*pages: str, seconds: float = 30.0) -> list[list[str]]:
    """Keys of the events of each page, `seconds` apart."""
    state: dict[str, object] = {}
    found = []
    for number, page in enumerate(pages):
        state["now"] = 1_000_000.0 + seconds * number
        found.append([event.key for event in read(page, state).events])
    return found


def test_an_old_xid_on_the_first_page_is_no_news() -> None:
    assert story(xid(43), xid(43), xid(43)) == [[], [], []]


def test_a_code_that_changes_is_news_once() -> None:
    assert story(xid(0), xid(79), xid(79), xid(79)) == [[], ["xid:79:GPU-aaa:1666"], [], []]
    state: dict[str, object] = {"now": 1_000_000.0}
    read(xid(31), state)
    (event,) = read(xid(79), state).events
    assert (event.kind, event.detail) == ("hardware", "XID 79 on node-a GPU 0 GPU-aaa")


def test_a_gpu_without_a_series_had_no_xid() -> None:
    """The exporter has no series for a GPU that never had one: its first is news, on a GPU we know."""
    assert story(xid(None), xid(94)) == [[], ["xid:94:GPU-aaa:1666"]]
    assert story(xid(None), xid(None) + xid(94, "GPU-new")) == [[], []]


def test_back_to_zero_is_no_error_and_the_code_again_is() -> None:
    assert story(xid(0), xid(31), xid(0), xid(31), seconds=700.0) == [
        [],
        ["xid:31:GPU-aaa:1667"],
        [],
        ["xid:31:GPU-aaa:1670"],
    ]


def test_a_blank_is_not_taken_for_zero() -> None:
    blank = 9_223_372_036_854_775_794
    assert story(xid(blank), xid(79)) == [[], []]
    # Known before the blank, and the same after it: nothing is known of what was between.
    assert story(xid(0), xid(blank), xid(79)) == [[], [], []]


def test_the_label_that_names_the_error_makes_no_new_gpu() -> None:
    assert story(xid(0, more=',err_code="0"'), xid(48, more=',err_code="48"')) == [[], ["xid:48:GPU-aaa:1666"]]


def test_instances_of_one_gpu_tell_one_error() -> None:
    both = xid(79, more=',GPU_I_ID="3"') + xid(79, more=',GPU_I_ID="5"').split("\n", 1)[1]
    assert story(xid(None), both) == [[], ["xid:79:GPU-aaa:1666"]]


def counted(family: str, count: object, more: str = "") -> str:
    return xid(None) + f'{family}{{gpu="0",UUID="GPU-aaa",Hostname="node-a"{more}}} {count}\n'


def test_the_exporters_own_count_tells_the_same_error() -> None:
    page = xid(79) + 'DCGM_EXP_XID_ERRORS_TOTAL{gpu="0",UUID="GPU-aaa",Hostname="node-a",xid="79"} 1\n'
    assert story(xid(0), page) == [[], ["xid:79:GPU-aaa:1666"]]
    again = page.replace("} 1\n", "} 2\n")  # a second one: the last-code gauge cannot tell
    assert story(xid(0), page, again, seconds=700.0)[2] == ["xid:79:GPU-aaa:1669"]


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu_ecc_errors_total"),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gpu_remapped_rows_total"),
    ],
)
def test_uncorrected_errors_are_news_by_their_count(family: str, metric: str) -> None:
    pages = [counted(family, count) for count in (3, 3, 4, 4, 0, 1)]  # loaded anew before the fifth
    assert story(*pages) == [[], [], [f"{metric}:4:GPU-aaa"], [], [], [f"{metric}:1:GPU-aaa"]]


def test_corrected_errors_are_only_counted() -> None:
    assert story(*[counted("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", count) for count in (3, 900)]) == [[], []]


def test_a_row_that_cannot_be_replaced() -> None:
    pages = [counted("DCGM_FI_DEV_ROW_REMAP_FAILURE", flag) for flag in (0, 1, 1)]
    assert story(*pages) == [[], ["gpu_row_remap_failed:1:GPU-aaa"], []]


def test_an_exporter_without_uuids() -> None:
    assert (
        value(read('DCGM_FI_DEV_GPU_UTIL{gpu="2"} 50\n'), "gpu_utilization_ratio", (("gpu", "2"), ("index", "2")))
        == 0.5
    )


def test_it_is_known_by_its_page_and_read_as_seldom_as_it_samples() -> None:
    assert detect_page(PAGE) == detect_page(MIG) == "dcgm"
    assert dcgm.COLLECTOR.report_seconds == 30
