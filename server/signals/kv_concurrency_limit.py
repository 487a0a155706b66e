"""The KV ceiling: how many requests the engines can run at once, at the length that sequences have now."""

from server.signals._ceiling import HINT, ceiling
from server.signals._engines import INPUTS
from server.signals._model import Answer, Signal, Unknown, Value, View


def _compute(view: View) -> Answer:
    found = ceiling(view)
    return found if isinstance(found, Unknown) else [Value(found.requests)]


SIGNAL = Signal(
    name="kv_concurrency_limit",
    title="KV ceiling",
    unit="requests",
    actor="generator",
    help="Requests that the engines can run at once: KV capacity / mean length of running sequences, at most the "
    "engine's own limit (or the fact `max_num_seqs`), summed over engines. Unknown below 5 % usage and while engines "
    "sleep.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
