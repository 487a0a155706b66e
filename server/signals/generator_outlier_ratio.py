"""Engines that are much idler or busier than the others, by name: a router that sends work to some of them only."""

from statistics import median

from server.signals._engines import Engine, awake
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View

_HINT = "no engine that is awake reports running requests: add its /metrics as a target"
_METRIC = "generator_requests_running"
# Half and twice the median: routers that balance by requests keep engines within a few percent of each other.
_IDLE, _BUSY = 0.5, 2.0
# The worst few of each side are for somebody to look at.
_NAMED = 3


def _compute(view: View) -> Answer:
    loads = _loads(view)
    if len(loads) < 2:
        return NotApplicable("one engine has no others to compare with") if loads else Unknown(_HINT)
    middle = median(load for load, _ in loads)
    if middle <= 0:
        return Unknown("most engines run nothing: there is no load to compare with")
    ratios = [(load / middle, engine) for load, engine in loads]
    return [
        *(Value(ratios[at][0], (("side", side),)) for at, side in ((0, "idlest"), (-1, "busiest"))),
        *(_named(ratio, engine, "idlest") for ratio, engine in ratios[:_NAMED] if ratio < _IDLE),
        *(_named(ratio, engine, "busiest") for ratio, engine in ratios[-_NAMED:] if ratio > _BUSY),
    ]


def _loads(view: View) -> list[tuple[float, Engine]]:
    means = ((engine.mean(_METRIC, view), engine) for engine in awake(view))
    return sorted(((mean, one) for mean, one in means if mean is not None), key=lambda load: (load[0], load[1].named))


def _named(ratio: float, engine: Engine, side: str) -> Value:
    return Value(ratio, tuple(sorted((*engine.named, ("side", side)))))


SIGNAL = Signal(
    name="generator_outlier_ratio",
    title="Uneven engines",
    unit="ratio",
    actor="generator",
    help="Running requests of the idlest and the busiest engine over the fleet's median, 5 minutes of whole steps; "
    "with the names of up to three below half of it and three above twice.",
    inputs=(_METRIC, "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
