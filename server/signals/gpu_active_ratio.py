"""How busy the GPUs are: of each the busiest of tensor cores, memory and engines, mean over the GPUs that report."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import whole_steps

# Decode is bound by memory and training by tensor cores: neither alone says that a GPU works.
ACTIVITIES = ("gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_engine_active_ratio")
_HINT = "no GPU reports its activity: add a DCGM exporter's :9400/metrics as a target"


def _compute(view: View) -> Answer:
    seconds = whole_steps(view)
    busiest: dict[tuple[str, str], float] = {}
    for metric in ACTIVITIES:
        for gauge in view.fresh(metric):
            labels = dict(gauge.labels)
            # Two exporters of one host tell of the same GPU; without a UUID an index is only its own target's.
            gpu = labels.get("gpu", "")
            key = (gpu if gpu != labels.get("index") else f"{gauge.target} {gpu}", labels.get("mig", ""))
            busiest[key] = max(gauge.mean(view.now, seconds), busiest.get(key, 0.0))
    return [Value(sum(busiest.values()) / len(busiest))] if busiest else Unknown(_HINT)


SIGNAL = Signal(
    name="gpu_active_ratio",
    title="GPU activity",
    unit="ratio",
    actor="generator",
    help="Highest activity of tensor cores, memory and engines per GPU, mean over GPUs; time-weighted over 5 minutes "
    "of whole steps.",
    inputs=ACTIVITIES,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
