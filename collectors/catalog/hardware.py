"""GPU metrics, reported by the hardware for all processes on it.

Labels: gpu (its UUID, or its index if there is no UUID), index, host, mig (an instance of a split GPU).
"""

from collectors.catalog.row import Rows

_g = Rows("generator")

ROWS = (
    # What a GPU does. The three activities distinguish work from waiting; utilisation does not.
    _g.gauge("gpu_engine_active_ratio", "ratio", "Share of time in which any compute or graphics engine was busy."),
    _g.gauge("gpu_tensor_active_ratio", "ratio", "Share of cycles in which the tensor cores were busy."),
    _g.gauge("gpu_dram_active_ratio", "ratio", "Share of cycles in which GPU memory was read or written."),
    _g.gauge("gpu_sm_active_ratio", "ratio", "Share of cycles in which an SM held at least one warp."),
    _g.gauge(
        "gpu_utilization_ratio",
        "ratio",
        "Share of time in which any kernel was resident: 1 while a collective spins and nothing is computed.",
    ),
    _g.gauge("gpu_memory_used_bytes", "bytes", "GPU memory in use, including caches that an engine reserves."),
    _g.gauge("gpu_memory_free_bytes", "bytes", "GPU memory free."),
    _g.gauge("gpu_power_watts", "watts", "Power drawn."),
    _g.counter("gpu_energy_joules_total", "joules", "Energy used since the driver was loaded."),
    _g.gauge("gpu_temperature_celsius", "celsius", "Temperature of the GPU."),
    _g.gauge("gpu_memory_temperature_celsius", "celsius", "Temperature of the GPU's memory."),
    _g.gauge("gpu_sm_clock_hertz", "hertz", "Clock of the SMs."),
    # Errors.
    _g.gauge("gpu_last_xid", "", "Code of the last XID error, also after it is over; 0 if there was none."),
    _g.counter("gpu_xid_errors_total", "errors", "XID errors since the exporter began; label xid."),
    _g.counter("gpu_ecc_errors_total", "errors", "ECC errors since the driver was loaded; label kind."),
    _g.counter("gpu_remapped_rows_total", "rows", "Memory rows replaced after errors; label kind."),
    _g.gauge("gpu_row_remap_failed", "", "1 when a broken memory row could not be replaced."),
)
