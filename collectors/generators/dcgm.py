"""NVIDIA's DCGM exporter (:9400/metrics): what GPUs do, draw and break.

It samples every 30 s by default: reading it more often brings repeats. Values that DCGM does not have come as huge
numbers (blanks of dcgm_structs.h) and are dropped: they are no zero, and no number either. Of a split GPU (MIG) every
instance is told apart by the label ``mig``.

XID and ECC errors become events. The XID gauge holds the last code for good, and a GPU that never had one has no
series: what counts is a code that was not there before, on a GPU that was.

Does not know: whose process it was. Corrected ECC errors are routine and only counted.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages import plain
from collectors.engine_pages.pages import Decision, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Event, Labels, Limits, Reading, Sample, State
from collectors.transport import rest

_PAGE = re.compile(rb"^DCGM_(?:FI|EXP)_\w+\{", re.MULTILINE)
_MODEL = re.compile(rb'\bmodelName="([^"\\\n]{1,64})"')

MIB = float(1 << 20)
_CORRECTED, _UNCORRECTED = (("kind", "corrected"),), (("kind", "uncorrected"),)

# etc/default-counters.csv and etc/dcp-metrics-included.csv (d5e5f510, and lines that are comments there).
VALUES: Mapping[str, Take] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Take("gpu_engine_active_ratio"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Take("gpu_tensor_active_ratio"),
    "DCGM_FI_PROF_DRAM_ACTIVE": Take("gpu_dram_active_ratio"),
    "DCGM_FI_PROF_SM_ACTIVE": Take("gpu_sm_active_ratio"),
    "DCGM_FI_DEV_GPU_UTIL": Take("gpu_utilization_ratio", scale=0.01),
    "DCGM_FI_DEV_FB_USED": Take("gpu_memory_used_bytes", scale=MIB),
    "DCGM_FI_DEV_FB_FREE": Take("gpu_memory_free_bytes", scale=MIB),
    "DCGM_FI_DEV_POWER_USAGE": Take("gpu_power_watts"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Take("gpu_energy_joules_total", scale=0.001),
    "DCGM_FI_DEV_GPU_TEMP": Take("gpu_temperature_celsius"),
    "DCGM_FI_DEV_MEMORY_TEMP": Take("gpu_memory_temperature_celsius"),
    "DCGM_FI_DEV_SM_CLOCK": Take("gpu_sm_clock_hertz", scale=1e6),
    "DCGM_FI_DEV_XID_ERRORS": Take("gpu_last_xid"),
    "DCGM_EXP_XID_ERRORS_TOTAL": Take("gpu_xid_errors_total", "xid"),
    # Since the driver was loaded; the GPU's lifetime where that is not told.
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Take("gpu_ecc_errors_total", put=_CORRECTED),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Take("gpu_ecc_errors_total", put=_UNCORRECTED),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": Take("gpu_ecc_errors_total", rank=1, put=_CORRECTED),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": Take("gpu_ecc_errors_total", rank=1, put=_UNCORRECTED),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Take("gpu_remapped_rows_total", put=_CORRECTED),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": Take("gpu_remapped_rows_total", put=_UNCORRECTED),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Take("gpu_row_remap_failed"),
}
_SCALES: Mapping[str, float] = {take.metric: take.scale for take in VALUES.values()}

# Blank, not found, not supported, not permitted: base + 0 to 3. 2^47 is that of floats, below that of 64-bit integers.
BLANK_FLOAT = float(1 << 47)
BLANK_INT32 = range(0x7FFFFFF0, 0x7FFFFFF4)

KEPT = {"UUID": "gpu", "gpu": "index", "Hostname": "host", "hostname": "host", "GPU_I_ID": "mig"}

# Two readers of one exporter meet a code within a sampling interval of each other; the same code again is news later.
BUCKET_SECONDS = 600.0


def decide(series: Series, family: str, _kind: str) -> Decision:
    """What to do with one series of the page."""
    take = VALUES.get(family) or VALUES.get(series.name)
    if take is not None:
        return engine_pages_pages.value_of(take, series, labels(series))
    return Unmapped(family) if family.startswith("DCGM_") else None


def labels(series: Series) -> Labels:
    """GPU, index, host and instance. An exporter without UUIDs has only the index to tell GPUs apart."""
    found = dict(engine_pages_pages.labels_of(series, KEPT))
    if "gpu" not in found and "index" in found:
        found["gpu"] = found["index"]
    return tuple(sorted(found.items()))


WORDS = Vocabulary(
    name="dcgm",
    decide=decide,
    proves=lambda series: series.name.startswith("DCGM_"),
    stranger="a metrics page without DCGM_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`. Events by what earlier pages of this target had."""
    page = engine_pages_pages.read(body, state, limits, WORDS)
    kept = tuple(sample for sample in page.samples if not blank(sample))
    memory: _Memory = state.setdefault("dcgm_seen", _Memory())
    events = {event.key: event for event in _events(kept, memory, float(state.get("now", 0.0)))}
    memory.note(page.samples)
    models = set(_MODEL.findall(body))
    # Of a host with several kinds no one name is true.
    name = rest.text(models.pop().decode(), 64) if len(models) == 1 else ""
    facts = {"gpu_type": name} if name else {}
    return replace(page, samples=kept, events=tuple(events.values()), facts=facts)


def blank(sample: Sample) -> bool:
    """Is it DCGM's word for "there is no value"?"""
    raw = sample.value / _SCALES[sample.metric]
    return raw >= BLANK_FLOAT or round(raw) in BLANK_INT32


# ---- errors


@dataclass(slots=True)
class _Memory:
    """What was last seen of each GPU. ``values``: None while DCGM had no value for it."""

    gpus: set[str] = field(default_factory=set)
    values: MutableMapping[tuple[str, Labels], float | None] = field(default_factory=dict)

    def before(self, sample: Sample) -> float | None:
        """The value before; 0 where the GPU was there without one; None where nothing is known of it."""
        known = dict(sample.labels).get("gpu", "") in self.gpus
        return self.values.get((sample.metric, sample.labels), 0.0 if known else None)

    def note(self, samples: tuple[Sample, ...]) -> None:
        """Remember a page."""
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


def _events(samples: tuple[Sample, ...], memory: _Memory, now: float) -> Iterator[Event]:
    for sample in samples:
        own = dict(sample.labels)
        if sample.metric in ERRORS and own.get("kind") != "corrected" and _news(sample, memory.before(sample)):
            code = own.get("xid") or f"{sample.value:.0f}"
            what = f"xid:{code}" if "xid" in sample.metric else f"{sample.metric}:{sample.value:.0f}"
            # Counts are never the same twice within a boot; codes are.
            when = f":{now // BUCKET_SECONDS:.0f}" if "xid" in sample.metric else ""
            detail = ERRORS[sample.metric].format(code=code, value=sample.value)
            place = " ".join(filter(None, (own.get("host"), f"GPU {own.get('index', '?')}", own.get("gpu"))))
            yield Event("hardware", f"{what}:{own.get('gpu', '')}{when}", detail=f"{detail} on {place}")


def _news(sample: Sample, before: float | None) -> bool:
    """Is it an error that was not there before? What a first page shows may be a week old."""
    return before is not None and sample.value != before and sample.value > 0


# ----


COLLECTOR = Collector(
    name="dcgm",
    actor="generator",
    reads="GPUs over NVIDIA's DCGM exporter: activity, memory, power, XID and ECC errors",
    versions="d5e5f510 (2026-05) by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
    report_seconds=30.0,
)
