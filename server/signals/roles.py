"""Prefill and decode engines of a fleet that divides the work: load, speed, and the KV caches that go between them.

Sources: SGLang with `--disaggregation-mode` (0.5.23), and target lists that name a worker's type (sglang-router).
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from server.signals.aggregates import step_mean, window_sum
from server.signals.engine_state import INPUTS, ROLES, Engine, awake
from server.signals.model import Answer, Unknown, Value, View, signal

_NO_ROLE = (
    "no engine reports that it only prefills or only decodes (SGLang does with `--disaggregation-mode`; a target list "
    "may give the label worker_type)"
)
_WAITING, _BY_REASON = "generator_requests_waiting", "generator_requests_waiting_by_reason"
_TOKENS = {"prefill": "generator_prompt_tokens_total", "decode": "generator_tokens_total"}
# SGLang's queues, in the order in which a request passes them.
_QUEUES = {
    "bootstrap": "prefill_bootstrap", "sending": "prefill_inflight", "allocation": "decode_prealloc",
    "receiving": "decode_transfer",
}  # fmt: skip


def _pools(view: View) -> Iterator[tuple[str, Sequence[Engine]]]:
    """The engines that are awake by role, as far as there are any."""
    fleet = awake(view)
    for role in ROLES:
        if pool := [one for one in fleet if one.role == role]:
            yield role, pool


@signal(
    title="Requests by role",
    unit="requests",
    actor="generator",
    inputs=(*INPUTS, _WAITING),
    cadence="tick",
    hint=_NO_ROLE,
)
def generator_role_requests(view: View) -> Answer:
    """Requests running and waiting in the prefill and in the decode engines, summed over each; mean over 5 minutes of
    whole steps.
    """
    waiting = {(one.target, one.labels): one for one in view.fresh(_WAITING)}
    found = []
    for role, pool in _pools(view):
        running = [mean for one in pool if (mean := one.mean("generator_requests_running", view)) is not None]
        queued = [step_mean(view, gauge) for one in pool if (gauge := waiting.get((one.target, one.labels)))]
        for state, means in (("running", running), ("waiting", queued)):
            if means:
                found.append(Value(sum(means), (("role", role), ("state", state))))
    return found or Unknown(_NO_ROLE)


@signal(title="KV cache by role", unit="ratio", actor="generator", inputs=INPUTS, cadence="tick", hint=_NO_ROLE)
def generator_role_kv_cache_ratio(view: View) -> Answer:
    """Used share of the KV cache of the prefill and of the decode engines: mean over engines, 5 minutes of whole
    steps.
    """
    pools = [(role, [one.mean("kv_cache_usage_ratio", view) for one in pool]) for role, pool in _pools(view)]
    measured = [(role, [mean for mean in means if mean is not None]) for role, means in pools]
    return [Value(fmean(means), (("role", role),)) for role, means in measured if means] or Unknown(_NO_ROLE)


@signal(title="Tokens by role", unit="tokens/s", actor="generator", inputs=INPUTS, cadence="tick", hint=_NO_ROLE)
def generator_role_tokens_per_second(view: View) -> Answer:
    """Prompt tokens per second of all prefill engines, and generated tokens per second of all decode engines, over 5
    minutes.
    """
    pools = [(role, [one.rate(_TOKENS[role], view) for one in pool]) for role, pool in _pools(view)]
    measured = [(role, [found for found in rates if found is not None]) for role, rates in pools]
    values = [Value(sum(rates), (("role", role),)) for role, rates in measured if rates]
    return values or Unknown("one page per engine so far; a rate needs two" if pools else _NO_ROLE)


@signal(
    title="Requests between prefill and decode",
    unit="requests",
    actor="generator",
    inputs=(*INPUTS, _BY_REASON),
    cadence="tick",
    hint=_NO_ROLE,
)
def generator_handover_requests(view: View) -> Answer:
    """Requests on their way from prefill to decode engines, summed over engines, mean over 5 minutes of whole steps:
    connecting to a decode engine (bootstrap), their KV cache being sent (sending); waiting for room in a decode
    engine (allocation), their KV cache being received (receiving).
    """
    if not list(_pools(view)):
        return Unknown(_NO_ROLE)
    gauges = view.fresh(_BY_REASON)
    by_queue = [
        (queue, [one for one in gauges if ("reason", reason) in one.labels]) for queue, reason in _QUEUES.items()
    ]
    values = [Value(window_sum(view, found), (("queue", queue),)) for queue, found in by_queue if found]
    return values or Unknown("the engines report no queue between prefill and decode (SGLang does)")
