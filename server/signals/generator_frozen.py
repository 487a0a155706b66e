"""Engines that answer but do not work: requests run, and nothing has moved in them for a minute."""

from server.signals._engines import FROZEN_SECONDS, HELD, SIGNS, Engine, engines
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports both running requests and generated tokens: add its /metrics as a target"
_JUDGED = ("generator_requests_running", "generator_tokens_total")


def _judged(engine: Engine) -> bool:
    return all(engine.tells(metric) for metric in _JUDGED)


def _compute(view: View) -> Answer:
    found: dict[str, bool] = {}
    for engine in filter(_judged, engines(view)):
        found[engine.target] = found.get(engine.target, False) or engine.state == "hung"
    return [Value(float(hung), (("target", target),)) for target, hung in found.items()] or Unknown(_HINT)


SIGNAL = Signal(
    name="generator_frozen",
    title="Frozen",
    unit="",
    actor="generator",
    help="1 for an engine that answers with running requests while no token is counted and no cache changes for "
    f"{FROZEN_SECONDS:.0f} s; 0 for the others, including paused and sleeping engines.",
    inputs=("generator_requests_running", *SIGNS, *HELD),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    critical=1.0,
)
