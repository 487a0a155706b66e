"""Health of the GPUs: utilisation, memory, temperature, power, clock and hardware errors, each GPU once.

The figures are NVIDIA's DCGM exporter's (:9400/metrics), for all processes on a GPU.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from collectors.model import Labels
from server.signals.aggregates import whole_steps
from server.signals.engine_state import spread
from server.signals.gpus import gpu_key
from server.signals.model import Answer, Unknown, Value, View, signal
from server.signals.window import Gauge

HINT = "no GPU reports it: add a DCGM exporter's :9400/metrics as a target"
GpuKey = tuple[str, str]


def _means(view: View, metric: str) -> dict[GpuKey, tuple[float, Labels]]:
    """GPU -> mean over 5 minutes of whole steps, and its labels."""
    seconds = whole_steps(view)
    return {gpu_key(one): (one.mean(view.now, seconds), one.labels) for one in view.fresh(metric)}


def _spread(view: View, metric: str, worst: str = "") -> Answer:
    """Lowest, mean and highest over GPUs. ``worst``: the end (min, max) of which the GPU is named as well."""
    found = _means(view, metric)
    if not found:
        return Unknown(HINT)
    values = spread([mean for mean, _ in found.values()])
    if worst and len(found) > 1:
        pick = min if worst == "min" else max
        mean, labels = pick(found.values(), key=lambda one: one[0])
        values.append(Value(mean, _named(labels, stat="worst")))
    return values


def _named(labels: Labels, **more: str) -> Labels:
    """Which GPU: its host, index and UUID."""
    kept = {name: value for name, value in labels if name in ("gpu", "host", "index")}
    return tuple(sorted((kept | more).items()))


# ---- load


@signal(
    title="GPU utilisation",
    unit="ratio",
    actor="generator",
    inputs=("gpu_utilization_ratio",),
    cadence="tick",
    hint=HINT,
)
def gpu_fleet_utilization_ratio(view: View) -> Answer:
    """Share of time in which any kernel was resident: lowest, mean and highest over GPUs, 5 minutes of whole steps. The
    least used GPU is named (`stat="worst"`).

    A collective that waits is 100 % utilised: see `gpu_active_ratio` for work.
    """
    return _spread(view, "gpu_utilization_ratio", "min")


@signal(
    title="SM activity",
    unit="ratio",
    actor="generator",
    inputs=("gpu_sm_active_ratio",),
    cadence="tick",
    hint="no GPU reports the activity of its SMs: switch DCGM_FI_PROF_SM_ACTIVE on in the DCGM exporter's counters",
)
def gpu_fleet_sm_active_ratio(view: View) -> Answer:
    """Share of cycles in which an SM held at least one warp: lowest, mean and highest over GPUs, 5 minutes of whole
    steps.
    """
    found = _spread(view, "gpu_sm_active_ratio")
    return Unknown(gpu_fleet_sm_active_ratio.hint) if isinstance(found, Unknown) else found


@signal(
    title="GPU memory",
    unit="ratio",
    actor="generator",
    inputs=("gpu_memory_used_bytes", "gpu_memory_free_bytes"),
    cadence="tick",
    hint=HINT,
)
def gpu_fleet_memory_used_ratio(view: View) -> Answer:
    """Used share of the GPU's memory, including caches that engines reserve: lowest, mean and highest over GPUs, 5
    minutes of whole steps.
    """
    used, free = _means(view, "gpu_memory_used_bytes"), _means(view, "gpu_memory_free_bytes")
    sums = [(mean, mean + free[gpu][0]) for gpu, (mean, _) in used.items() if gpu in free]
    shares = [part / whole for part, whole in sums if whole > 0]
    return spread(shares) if shares else Unknown(gpu_fleet_memory_used_ratio.hint)


@signal(
    title="NVLink",
    unit="GB/s",
    actor="generator",
    inputs=("gpu_nvlink_bytes_per_second",),
    cadence="tick",
    hint="no GPU reports its NVLink traffic: switch DCGM_FI_PROF_NVLINK_TX_BYTES and DCGM_FI_PROF_NVLINK_RX_BYTES on "
    "in the DCGM exporter's counters",
)
def gpu_fleet_nvlink_bandwidth(view: View) -> Answer:
    """Data over a GPU's NVLinks, sent and received together: lowest, mean and highest over GPUs, 5 minutes of whole
    steps.
    """
    # Two exporters of one GPU report the same: by direction, it counts once.
    means: dict[GpuKey, dict[str, float]] = defaultdict(dict)
    seconds = whole_steps(view)
    for gauge in view.fresh("gpu_nvlink_bytes_per_second"):
        means[gpu_key(gauge)][dict(gauge.labels)["direction"]] = gauge.mean(view.now, seconds) / 1e9
    found = [sum(by_direction.values()) for by_direction in means.values()]
    return spread(found) if found else Unknown(gpu_fleet_nvlink_bandwidth.hint)


# ---- heat and power


@signal(
    title="GPU temperature",
    unit="celsius",
    actor="generator",
    inputs=("gpu_temperature_celsius",),
    cadence="tick",
    hint=HINT,
    # An H100 SXM may run at up to 87 degrees Celsius and lowers its clock at 89 (`nvidia-smi -q`).
    watch=85.0,
)
def gpu_fleet_temperature_celsius(view: View) -> Answer:
    """Temperature of the GPU: lowest, mean and highest over GPUs, 5 minutes of whole steps. The hottest GPU is named
    (`stat="worst"`).
    """
    return _spread(view, "gpu_temperature_celsius", "max")


@signal(
    title="GPU memory temperature",
    unit="celsius",
    actor="generator",
    inputs=("gpu_memory_temperature_celsius",),
    cadence="tick",
    hint="no GPU reports the temperature of its memory",
)
def gpu_fleet_memory_temperature_celsius(view: View) -> Answer:
    """Temperature of the GPU's memory: lowest, mean and highest over GPUs, 5 minutes of whole steps."""
    found = _spread(view, "gpu_memory_temperature_celsius")
    return Unknown(gpu_fleet_memory_temperature_celsius.hint) if isinstance(found, Unknown) else found


@signal(
    title="GPU power",
    unit="watts",
    actor="generator",
    inputs=("gpu_power_watts",),
    cadence="tick",
    hint=HINT,
)
def gpu_fleet_power_watts(view: View) -> Answer:
    """Power drawn: lowest, mean and highest over GPUs, 5 minutes of whole steps."""
    return _spread(view, "gpu_power_watts")


@signal(
    title="SM clock",
    unit="hertz",
    actor="generator",
    inputs=("gpu_sm_clock_hertz",),
    cadence="tick",
    hint=HINT,
)
def gpu_fleet_clock_hertz(view: View) -> Answer:
    """Clock of the SMs: lowest, mean and highest over GPUs, 5 minutes of whole steps. The slowest GPU is named
    (`stat="worst"`).

    A GPU far below the others is idle, too hot or limited in power.
    """
    return _spread(view, "gpu_sm_clock_hertz", "min")


# ---- errors

# XID codes after which the GPU must be reset, its host restarted or its NVLink checked: those that NVIDIA/NVSentinel
# rates FATAL with an action RESET_GPU, RESTART_BM, WORKFLOW_XID_48, WORKFLOW_NVLINK_ERR or WORKFLOW_NVLINK5_ERR
# (gpu-health-monitor/xiderrorsmapping.csv, read 2026-11-29; 162 has no name there and is left out).
CRITICAL_XIDS: Mapping[str, str] = {
    "46": "GPU stopped processing",
    "48": "double-bit ECC error",
    "62": "internal microcontroller halted",
    "64": "a row remap could not be recorded",
    "74": "NVLink error",
    "79": "GPU fell off the bus",
    "95": "uncontained memory error",
    "109": "context switch timed out",
    "110": "security fault",
    "119": "GSP does not answer",
    "120": "GSP error",
    "136": "NVLink training failed",
    "140": "unrecovered ECC error",
    "143": "GPU could not be initialised",
    **dict.fromkeys(("144", "145", "146", "147", "148", "149", "150", "155"), "NVLink error"),
    "156": "a resource was retired",
    "158": "GPU timed out",
    "160": "a memory channel was retired",
}
_LAST, _COUNTED, _ECC, _REMAP = (
    "gpu_last_xid", "gpu_xid_errors_total", "gpu_ecc_errors_total", "gpu_row_remap_failed",
)  # fmt: skip
# A GPU without an error has no series of errors; these show that it was read.
_ALWAYS_REPORTED = ("gpu_temperature_celsius", "gpu_utilization_ratio", "gpu_power_watts", "gpu_memory_used_bytes")


@signal(
    title="GPU error",
    unit="",
    actor="generator",
    inputs=(_LAST, _COUNTED, _ECC, _REMAP),
    cadence="tick",
    hint="no GPU reports XID or ECC errors: add a DCGM exporter's :9400/metrics as a target",
    critical=1.0,
)
def gpu_fault(view: View) -> Answer:
    """1 for each GPU that within 5 minutes reported an XID after which it must be reset, or an uncorrected ECC error;
    and for a GPU that could not replace a broken memory row. 0 without labels if there is none.

    The exporter keeps the last XID permanently, so an error on the first page of a GPU may be old and does not count.
    """
    if not any(view.fresh(metric) for metric in (_LAST, _COUNTED, _ECC, _REMAP, *_ALWAYS_REPORTED)):
        return Unknown(gpu_fault.hint)
    found = {(gpu_key(gauge), error): gauge.labels for gauge, error in _errors(view)}
    return [Value(1.0, _named(labels, error=error)) for (_, error), labels in sorted(found.items())] or [Value(0.0)]


def _errors(view: View) -> Iterator[tuple[Gauge, str]]:
    for gauge in view.gauges.get(_LAST, ()):
        yield from ((gauge, _xid(f"{code:.0f}")) for code in _new(gauge, view) if f"{code:.0f}" in CRITICAL_XIDS)
    for gauge in view.gauges.get(_COUNTED, ()):
        code = dict(gauge.labels).get("xid", "")
        if code in CRITICAL_XIDS and any(_new(gauge, view)):
            yield gauge, _xid(code)
    for gauge in view.gauges.get(_ECC, ()):
        if dict(gauge.labels).get("kind") == "uncorrected" and any(_new(gauge, view)):
            yield gauge, "uncorrected ECC error"
    yield from ((gauge, "a memory row could not be replaced") for gauge in view.fresh(_REMAP) if gauge.last > 0)


def _xid(code: str) -> str:
    return f"XID {code}, {CRITICAL_XIDS[code]}"


def _new(gauge: Gauge, view: View) -> Iterator[float]:
    """Values above zero that the series took within 5 minutes and had not before.

    A GPU without an error has no series: the first value is new if the GPU was read before.
    """
    before = 0.0 if _seen(view).get(gpu_key(gauge), view.now) < gauge.points[0][0] else None
    for ts, value in gauge.points:
        if before is not None and value != before and value > 0 and ts > view.now - gauge.keep:
            yield value
        before = value


def _seen(view: View) -> Mapping[GpuKey, float]:
    """GPU -> time of its first page within the window."""

    def first(view: View) -> dict[GpuKey, float]:
        found: dict[GpuKey, float] = {}
        for gauge in (one for metric in _ALWAYS_REPORTED for one in view.gauges.get(metric, ())):
            key = gpu_key(gauge)
            found[key] = min(gauge.points[0][0], found.get(key, view.now))
        return found

    seen: dict[GpuKey, float] = view.once("gpus_seen", first)
    return seen
