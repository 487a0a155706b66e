"""Reads NVIDIA's DCGM exporter (:9400/metrics): GPU activity, memory, power and errors.

The exporter samples every 30 s by default; more frequent reads return repeated values. DCGM writes missing values as
huge numbers (blanks of dcgm_structs.h); they are dropped. The instances of a partitioned GPU (MIG) have the label
``mig``.

XID and ECC errors become events. The XID gauge keeps the last code permanently, and a GPU without an XID has no series.
So an event is a code that the previous page did not have, on a GPU that the previous page had.

The exporter does not report the process that caused an error. Corrected ECC errors are routine and only counted.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

from msgspec import structs

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.model import Collector, Event, Labels, Limits, Reading, Sample, State
from collectors.transport import rest

_PAGE = re.compile(rb"^DCGM_(?:FI|EXP)_\w+\{", re.MULTILINE)
_MODEL = re.compile(rb'\bmodelName="([^"\\\n]{1,64})"')

MIB = float(1 << 20)
_CORRECTED = (("kind", "corrected"),)
_UNCORRECTED = (("kind", "uncorrected"),)

# etc/default-counters.csv and etc/dcp-metrics-included.csv (d5e5f510, and lines that are comments there).
VALUES: Mapping[str, MetricRule] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": MetricRule("gpu_engine_active_ratio"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": MetricRule("gpu_tensor_active_ratio"),
    "DCGM_FI_PROF_DRAM_ACTIVE": MetricRule("gpu_dram_active_ratio"),
    "DCGM_FI_PROF_SM_ACTIVE": MetricRule("gpu_sm_active_ratio"),
    "DCGM_FI_DEV_GPU_UTIL": MetricRule("gpu_utilization_ratio", scale=0.01),
    "DCGM_FI_DEV_FB_USED": MetricRule("gpu_memory_used_bytes", scale=MIB),
    "DCGM_FI_DEV_FB_FREE": MetricRule("gpu_memory_free_bytes", scale=MIB),
    "DCGM_FI_DEV_POWER_USAGE": MetricRule("gpu_power_watts"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": MetricRule("gpu_energy_joules_total", scale=0.001),
    "DCGM_FI_DEV_GPU_TEMP": MetricRule("gpu_temperature_celsius"),
    "DCGM_FI_DEV_MEMORY_TEMP": MetricRule("gpu_memory_temperature_celsius"),
    "DCGM_FI_DEV_SM_CLOCK": MetricRule("gpu_sm_clock_hertz", scale=1e6),
    # A rate, also where the exporter's configuration calls it a counter (DCGM user guide, profiling metrics).
    "DCGM_FI_PROF_NVLINK_TX_BYTES": MetricRule("gpu_nvlink_bytes_per_second", put=(("direction", "sent"),)),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": MetricRule("gpu_nvlink_bytes_per_second", put=(("direction", "received"),)),
    "DCGM_FI_DEV_XID_ERRORS": MetricRule("gpu_last_xid"),
    "DCGM_EXP_XID_ERRORS_TOTAL": MetricRule("gpu_xid_errors_total", "xid"),
    # `VOL`: since the driver was loaded. `AGG`: since the GPU was made, used if `VOL` is missing.
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": MetricRule("gpu_ecc_errors_total", put=_CORRECTED),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": MetricRule("gpu_ecc_errors_total", put=_UNCORRECTED),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": MetricRule("gpu_ecc_errors_total", rank=1, put=_CORRECTED),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": MetricRule("gpu_ecc_errors_total", rank=1, put=_UNCORRECTED),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": MetricRule("gpu_remapped_rows_total", put=_CORRECTED),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": MetricRule("gpu_remapped_rows_total", put=_UNCORRECTED),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": MetricRule("gpu_row_remap_failed"),
}
_SCALES: Mapping[str, float] = {rule.metric: rule.scale for rule in VALUES.values()}

# DCGM's markers for a missing value are a base + 0 to 3: blank, not found, not supported, not permitted.
# The base for floats is 2^47; that for 64-bit integers is larger.
BLANK_FLOAT = float(1 << 47)
# The four markers for 32-bit integers.
BLANK_INT32 = range(0x7FFFFFF0, 0x7FFFFFF4)

# Labels of the page -> ours.
LABELS = {"UUID": "gpu", "gpu": "index", "Hostname": "host", "hostname": "host", "GPU_I_ID": "mig"}

# Events with the same code within this time are one event: two readers of one exporter see a code at most one sampling
# interval apart. The same code in a later bucket is a new event.
BUCKET_SECONDS = 600.0


def decide(series: Series, family: str, _kind: str) -> Decision:
    """Maps one series of the page."""
    rule = VALUES.get(family) or VALUES.get(series.name)
    if rule is not None:
        return pages.value_of(rule, series, labels(series))
    return Unmapped(family) if family.startswith("DCGM_") else None


def labels(series: Series) -> Labels:
    """GPU, index, host and MIG instance. Without UUIDs the index identifies the GPU."""
    series_labels = dict(pages.labels_of(series, LABELS))
    if "gpu" not in series_labels and "index" in series_labels:
        series_labels["gpu"] = series_labels["index"]
    return tuple(sorted(series_labels.items()))


RULES = PageRules(
    name="dcgm",
    decide=decide,
    proves=lambda series: series.name.startswith("DCGM_"),
    mismatch="a metrics page without DCGM_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`. Events result from the comparison with earlier pages of the target."""
    page = pages.read(body, state, limits, RULES)
    samples = tuple(sample for sample in page.samples if not blank(sample))
    previous: _Previous = state.setdefault("dcgm_seen", _Previous())
    events = {event.key: event for event in _events(samples, previous, float(state.get("now", 0.0)))}
    previous.update(page.samples)
    models = set(_MODEL.findall(body))
    # A host with several GPU models has no single type.
    name = rest.text(models.pop().decode(), 64) if len(models) == 1 else ""
    facts = {"gpu_type": name} if name else {}
    return structs.replace(page, samples=samples, events=tuple(events.values()), facts=facts)


def blank(sample: Sample) -> bool:
    """Is the value DCGM's marker for "no value"?"""
    raw = sample.value / _SCALES[sample.metric]
    return raw >= BLANK_FLOAT or round(raw) in BLANK_INT32


# ---- errors


@dataclass(slots=True)
class _Previous:
    """GPUs and error values of earlier pages. ``values``: None while DCGM had no value."""

    gpus: set[str] = field(default_factory=set)
    values: MutableMapping[tuple[str, Labels], float | None] = field(default_factory=dict)

    def before(self, sample: Sample) -> float | None:
        """The previous value; 0 if the GPU was seen without one; None if the GPU is new."""
        seen = dict(sample.labels).get("gpu", "") in self.gpus
        return self.values.get((sample.metric, sample.labels), 0.0 if seen else None)

    def update(self, samples: tuple[Sample, ...]) -> None:
        """Stores the values of a page."""
        self.gpus.update(dict(sample.labels).get("gpu", "") for sample in samples)
        for sample in samples:
            if sample.metric in ERRORS:
                self.values[sample.metric, sample.labels] = None if blank(sample) else sample.value


ERRORS: Mapping[str, str] = {
    "gpu_last_xid": "XID {code}",
    "gpu_xid_errors_total": "XID {code}",
    "gpu_ecc_errors_total": "uncorrected ECC error, {value:.0f} in all",
    "gpu_remapped_rows_total": "a memory row was replaced after uncorrected errors, {value:.0f} in all",
    "gpu_row_remap_failed": "a broken memory row could not be replaced",
}


def _events(samples: tuple[Sample, ...], previous: _Previous, now: float) -> Iterator[Event]:
    for sample in samples:
        series_labels = dict(sample.labels)
        if (
            sample.metric in ERRORS
            and series_labels.get("kind") != "corrected"
            and _is_new(sample, previous.before(sample))
        ):
            code = series_labels.get("xid") or f"{sample.value:.0f}"
            error_key = f"xid:{code}" if "xid" in sample.metric else f"{sample.metric}:{sample.value:.0f}"
            # A code can occur again, so its key has the time; a count does not repeat within a boot.
            time_suffix = f":{now // BUCKET_SECONDS:.0f}" if "xid" in sample.metric else ""
            detail = ERRORS[sample.metric].format(code=code, value=sample.value)
            gpu = " ".join(
                filter(
                    None,
                    (series_labels.get("host"), f"GPU {series_labels.get('index', '?')}", series_labels.get("gpu")),
                )
            )
            yield Event(
                "hardware", f"{error_key}:{series_labels.get('gpu', '')}{time_suffix}", detail=f"{detail} on {gpu}"
            )


def _is_new(sample: Sample, before: float | None) -> bool:
    """Is it a new error? Errors on the first page do not count, because they may be old."""
    return before is not None and sample.value != before and sample.value > 0


# ----


COLLECTOR = Collector(
    name="dcgm",
    actor="generator",
    reads="GPUs over NVIDIA's DCGM exporter: activity, memory, power, XID and ECC errors",
    versions="d5e5f510 (2026-05) by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
    report_seconds=30.0,
)
