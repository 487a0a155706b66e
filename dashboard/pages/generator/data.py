"""Cells of the Generator page: whether the engines are the limit, room in the caches, outliers."""

from typing import Any

from msgspec import structs

from dashboard.pages.generator import engines
from dashboard.pages.generator.engines import Engine
from dashboard.pages.verdict import advised, because, named, simulated
from dashboard.shell.page import Scope
from dashboard.widgets import card, chart
from dashboard.widgets.base import Headline, Quantity, state_word
from dashboard.widgets.card import Card, CardNow
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import number, text, tight
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import StatusFacts, View, first_clause, joined
from server.query.types import SignalNow

_TTFT, _ITL, _E2E = "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_seconds"
_QUEUE, _CEILING = "generator_queue_seconds", "kv_concurrency_limit"
_FORECAST = "kv_concurrency_limit_forecast_seconds"
# Seconds. A ceiling that is reached within a shift is flagged.
_SOON = 6 * 3600.0
_ENGINE_TOKENS = "generator_engine_tokens_per_second"

CARDS: tuple[Card, ...] = (
    Card("ge_up", "Engines up", "orange", (want("generator_engines", state="up"),), unit=""),
    Card("ge_running", "Running", "orange", (want("generator_requests_now", state="running"),), unit=""),
    Card("ge_waiting", "Waiting", "grey", (want("generator_requests_now", state="waiting"),), unit="", peaks=True),
    Card(
        "ge_kv",
        "KV cache",
        "orange",
        (want("kv_cache_usage_ratio"),),
        notes=(("fullest", want("kv_cache_engine_usage_ratio", stat="max")),),
    ),
    Card(
        "ge_tokens",
        "Generated",
        "orange",
        (want("generator_tokens_per_second"),),
        notes=(
            ("per GPU", want("generator_gpu_tokens_per_second")),
            ("prompts", want("generator_prompt_tokens_per_second")),
        ),
    ),
    Card(
        "ge_ttft",
        "First token p95",
        "orange",
        (want(_TTFT, stat="p95"), want(_TTFT)),
        notes=(("p50", want(_TTFT, stat="p50")),),
        peaks=True,
    ),
    Card(
        "ge_preempted",
        "Preempted",
        "gold",
        (want("generator_preemption_ratio"),),
        notes=(("so far", want("generator_preemptions_total")),),
    ),
    Card("ge_prefix", "Prefix hits", "teal", (want("prefix_cache_hit_ratio"),)),
)
# The number of engines hardly ever moves.
SPARKS = CARDS[1:]


def _latency(key: str, title: str, signal: str) -> Panel:
    low, high = want(signal, stat="p50|mean"), want(signal, stat="p95")
    lines = (
        PanelLine("p50", low, "orange", named_by="stat"),
        PanelLine("p95", high, "orange", "band", thin=True),
    )
    return Panel(key, title, "over 5 min", "seconds", lines)


PANELS: tuple[Panel, ...] = (
    Panel(
        "gload",
        "Requests against the KV ceiling",
        "5 min mean",
        "requests",
        (
            PanelLine("running", want("generator_requests", state="running"), "orange", "zero", envelope=True),
            PanelLine("waiting", want("generator_requests", state="waiting"), "grey"),
            PanelLine("KV ceiling", want(_CEILING), "plum", limit=True),
        ),
        limits="in_flight",
    ),
    Panel(
        "gkv",
        "KV cache",
        "5 min mean",
        "ratio",
        (
            PanelLine("mean", want("kv_cache_usage_ratio"), "orange", envelope=True),
            PanelLine("fullest engine", want("kv_cache_engine_usage_ratio", stat="max"), "orange", thin=True),
            PanelLine("emptiest", want("kv_cache_engine_usage_ratio", stat="min"), "grey", thin=True),
        ),
        limits="kv_cache_usage_ratio",
        ceiling=1,
    ),
    Panel(
        "gtokens",
        "Throughput",
        "tokens/s",
        "tokens/s",
        (
            PanelLine("generated", want("generator_tokens_per_second"), "orange", "zero"),
            PanelLine("prompts", want("generator_prompt_tokens_per_second"), "grey"),
        ),
    ),
    Panel(
        "gspread",
        "Tokens per engine",
        "tokens/s, 5 min",
        "tokens/s",
        (
            PanelLine("mean", want(_ENGINE_TOKENS, stat="mean"), "orange"),
            PanelLine("fastest", want(_ENGINE_TOKENS, stat="max"), "orange", thin=True),
            PanelLine("slowest", want(_ENGINE_TOKENS, stat="min"), "grey", thin=True),
        ),
    ),
    Panel(
        "gpreempt",
        "Preempted",
        "% of requests",
        "ratio",
        (PanelLine("preempted", want("generator_preemption_ratio"), "gold", "zero"),),
        limits="generator_preemption_ratio",
    ),
    _latency("gttft", "Time to first token", _TTFT),
    Panel(
        "gitl",
        "Time between tokens",
        "over 5 min",
        "seconds",
        # The mean is exact; fast decode has no quantile, for it is below the engines' first edge.
        (
            PanelLine("mean", want(_ITL, stat="mean"), "orange"),
            PanelLine("p95", want(_ITL, stat="p95"), "orange", "band", thin=True),
        ),
    ),
    _latency("gqueue", "Engine queue time", _QUEUE),
    _latency("ge2e", "End-to-end latency", _E2E),
    Panel(
        "gprefix",
        "Prefix cache hits",
        "% of prompt tokens",
        "ratio",
        (PanelLine("hits", want("prefix_cache_hit_ratio"), "teal", "zero"),),
        ceiling=1,
    ),
    Panel(
        "giter",
        "Tokens per iteration",
        "of an engine, over 5 min",
        "tokens",
        (
            PanelLine("mean", want("generator_iteration_tokens", stat="mean"), "orange"),
            PanelLine("p95", want("generator_iteration_tokens", stat="p95"), "orange", "band", thin=True),
        ),
    ),
    Panel(
        "gends",
        "Abnormal finishes",
        "% of requests ended",
        "ratio",
        (
            PanelLine("aborted", want("generator_finish_ratio", reason="abort"), "orange"),
            PanelLine("at the length limit", want("generator_finish_ratio", reason="length"), "grey"),
            PanelLine("error", want("generator_finish_ratio", reason="error"), "plum"),
        ),
    ),
    Panel(
        "gweights",
        "Weight updates",
        "of an engine in 5 min",
        "updates",
        (
            PanelLine("most", want("generator_weight_updates", stat="max"), "blue"),
            PanelLine("fewest", want("generator_weight_updates", stat="min"), "grey", thin=True),
        ),
    ),
    Panel(
        "gheld",
        "Dispatch paused",
        "% of step",
        "ratio",
        (
            PanelLine("staleness gate", want("generation_held_ratio", by="gate"), "teal"),
            PanelLine("full queue", want("generation_held_ratio", by="backpressure"), "grey"),
        ),
    ),
)


def _spread(key: str, title: str, signal: str, unit: str, shown: str, low: str, high: str, **more: Any) -> Panel:
    """Mean over GPUs, and the ends that are named. ``shown``: the unit's symbol."""
    ends = (("max", high, "orange"), ("min", low, "grey"))
    thin = [PanelLine(label, want(signal, stat=stat), colour, thin=True) for stat, label, colour in ends if label]
    mean = PanelLine("mean", want(signal, stat="mean"), "orange", envelope=True)
    return Panel(key, title, f"{shown}, over GPUs, 5 min mean", unit, (mean, *thin), **more)


GPUS: tuple[Panel, ...] = (
    Panel(
        "gpuuse",
        "GPU utilisation",
        "% of the time, over GPUs, 5 min mean",
        "ratio",
        (
            PanelLine("utilisation", want("gpu_fleet_utilization_ratio", stat="mean"), "grey"),
            PanelLine("least used GPU", want("gpu_fleet_utilization_ratio", stat="min"), "grey", thin=True),
            PanelLine("SMs active", want("gpu_fleet_sm_active_ratio", stat="mean"), "blue"),
            PanelLine("tensor cores or memory active", want("gpu_active_ratio"), "orange"),
        ),
        ceiling=1,
    ),
    _spread("gpumem", "GPU memory", "gpu_fleet_memory_used_ratio", "ratio", "% used", "emptiest", "fullest", ceiling=1),
    Panel(
        "gputemp",
        "GPU temperature",
        "°C, 5 min mean",
        "celsius",
        (
            PanelLine("mean", want("gpu_fleet_temperature_celsius", stat="mean"), "orange"),
            PanelLine("hottest", want("gpu_fleet_temperature_celsius", stat="max"), "orange", thin=True),
            PanelLine("hottest memory", want("gpu_fleet_memory_temperature_celsius", stat="max"), "plum", thin=True),
        ),
        limits="gpu_fleet_temperature_celsius",
        from_zero=False,
    ),
    _spread("gpupower", "GPU power", "gpu_fleet_power_watts", "watts", "W", "lowest", "highest"),
    _spread("gpuclock", "SM clock", "gpu_fleet_clock_hertz", "hertz", "Hz", "slowest GPU", ""),
    _spread("gpunvlink", "NVLink traffic", "gpu_fleet_nvlink_bandwidth", "GB/s", "GB/s", "least", "most"),
)
ROUTER: tuple[Panel, ...] = (
    Panel(
        "rreq",
        "Requests at the router",
        "5 min mean",
        "requests",
        (
            PanelLine("sent to engines", want("router_requests", state="in_flight"), "orange", "zero"),
            PanelLine("queued", want("router_requests", state="queued"), "grey"),
        ),
    ),
    Panel(
        "rretry",
        "Retries and errors",
        "per second, over 5 min",
        "requests/s",
        (
            PanelLine("retried", want("router_retries_per_second", outcome="retried"), "gold"),
            PanelLine("given up", want("router_retries_per_second", outcome="exhausted"), "plum"),
            PanelLine("errors", want("router_errors_per_second", of="request"), "orange"),
            PanelLine("errors of workers", want("router_errors_per_second", of="worker"), "orange", thin=True),
            PanelLine("rejected", want("router_errors_per_second", of="rejected"), "grey"),
        ),
    ),
    Panel(
        "rwork",
        "Workers of the router",
        "now",
        "workers",
        (
            PanelLine("registered", want("router_workers_now", state="registered"), "grey"),
            PanelLine("healthy", want("router_workers_now", state="healthy"), "orange"),
            PanelLine("circuit open", want("router_workers_now", state="circuit_open"), "plum"),
        ),
    ),
)
ROLES: tuple[Panel, ...] = (
    Panel(
        "roload",
        "Requests by role",
        "5 min mean",
        "requests",
        (
            PanelLine("prefill running", want("generator_role_requests", role="prefill", state="running"), "blue"),
            PanelLine("prefill waiting", want("generator_role_requests", role="prefill", state="waiting"), "grey"),
            PanelLine("decode running", want("generator_role_requests", role="decode", state="running"), "orange"),
            PanelLine("decode waiting", want("generator_role_requests", role="decode", state="waiting"), "gold"),
        ),
    ),
    Panel(
        "rokv",
        "KV cache by role",
        "mean over engines, 5 min mean",
        "ratio",
        (
            PanelLine("prefill", want("generator_role_kv_cache_ratio", role="prefill"), "blue"),
            PanelLine("decode", want("generator_role_kv_cache_ratio", role="decode"), "orange"),
        ),
        ceiling=1,
    ),
    Panel(
        "rotokens",
        "Tokens by role",
        "tokens/s over 5 min",
        "tokens/s",
        (
            PanelLine("prompts, by prefill", want("generator_role_tokens_per_second", role="prefill"), "blue"),
            PanelLine("generated, by decode", want("generator_role_tokens_per_second", role="decode"), "orange"),
        ),
    ),
    Panel(
        "roqueues",
        "Between prefill and decode",
        "requests, 5 min mean",
        "requests",
        (
            PanelLine("connecting", want("generator_handover_requests", queue="bootstrap"), "grey"),
            PanelLine("KV cache being sent", want("generator_handover_requests", queue="sending"), "blue"),
            PanelLine("waiting for room", want("generator_handover_requests", queue="allocation"), "plum"),
            PanelLine("KV cache being received", want("generator_handover_requests", queue="receiving"), "orange"),
        ),
    ),
    _latency("rotransfer", "KV cache transfer", "kv_transfer_seconds"),
)
SPECULATIVE: tuple[Panel, ...] = (
    Panel(
        "gspec",
        "Draft tokens accepted",
        "% over 5 min",
        "ratio",
        (
            PanelLine("all", want("speculative_accepted_ratio"), "orange", "zero"),
            PanelLine("1st of a draft", want("speculative_position_ratio", position="0"), "blue", thin=True),
            PanelLine("2nd", want("speculative_position_ratio", position="1"), "teal", thin=True),
            PanelLine("3rd", want("speculative_position_ratio", position="2"), "grey", thin=True),
        ),
        ceiling=1,
    ),
    Panel(
        "gspeclen",
        "Tokens per step",
        "of a sequence, over 5 min",
        "tokens",
        (PanelLine("mean", want("speculative_accepted_length_tokens"), "orange"),),
    ),
)
REPORTED: tuple[Panel, ...] = (*ROLES, *GPUS, *ROUTER, *SPECULATIVE)
"""Charts that only some runs have."""


def cells(scope: Scope) -> View:
    """All texts of the page."""
    facts, infos = scope.facts, scope.reader.signals.infos
    fleet = engines.fleet(scope)
    cards = card.bind_all(CARDS, facts, infos)
    cards["ge_up"] = _up(cards["ge_up"], facts, fleet)
    found = card.cells(cards) | chart.cells(chart.bind_all((*PANELS, *REPORTED), facts, infos))
    found |= _head(facts, fleet) | _states(facts, fleet) | _room(facts) | _speed(facts)
    found |= _roles(facts, fleet) | _gpus(facts) | _router(facts) | _speculative(facts)
    return found | engines.outliers(fleet) | engines.heat(scope, fleet) | engines.table(fleet)


# ---- head


def _head(facts: StatusFacts, fleet: list[Engine]) -> View:
    """The answer in one line, what it rests on, and what to try."""
    advice = next(iter(facts.status.verdict.advice), None) if facts.present else None
    return {
        "head.generator": structs.replace(_answer(facts, fleet), text=_measured(facts, fleet)),
        "generator.next": f"Try next: {advised(advice)}" if advice else "",
        "generator.try": simulated(advice) if advice else "",
    }  # fmt: skip


def _answer(facts: StatusFacts, fleet: list[Engine]) -> Headline:
    dead = [one for one in fleet if one.state in ("down", "hung")]
    if dead and facts.current:
        states = " or ".join(state for state in ("down", "hung") if any(one.state == state for one in dead))
        verb = "is" if len(dead) == 1 else "are"
        after = f" {verb} {states} ({len(dead)} of {len(fleet)})"
        return Headline(figure=Quantity(text=_names(dead)), after=after, state="critical")
    verdict = facts.status.verdict
    outcome, cause = verdict.outcome, verdict.cause
    be = "were" if facts.over else "are"
    if outcome == "generator_bound":
        tail = because(cause)
        before = f"The engines {be} the limit" + (": " if tail else "")
        return Headline(before, Quantity(text=tail) if tail else None, state="critical")
    if outcome != "unknown":
        return Headline(f"The engines {be} not the limit", state="ok")
    return _unjudged(facts, fleet)


def _unjudged(facts: StatusFacts, fleet: list[Engine]) -> Headline:
    """No verdict: what is measured, and no more."""
    kv, running = facts.find("kv_cache_usage_ratio"), facts.value("generator_requests_now", state="running")
    if kv is not None and kv.value is not None and kv.state in ("watch", "critical"):
        return Headline("The KV cache is ", Quantity(kv.value, "ratio"), " full", state=kv.state)
    if running is not None:
        verb = "ran" if facts.over else "run"
        many = f"{len(fleet)} engines" if len(fleet) != 1 else "The engine"
        before = f"{many} {verb if len(fleet) != 1 or facts.over else 'runs'} "
        return Headline(before, Quantity(running), " requests", state="ok")
    silence = facts.silence("generator_requests_now")
    if silence:
        return Headline(silence[0].upper() + silence[1:], state="unknown")
    return Headline("No engine is monitored", state="unknown")


def _names(found: list[Engine]) -> str:
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return ", ".join(one.name for one in found[:2]) + more


def _measured(facts: StatusFacts, fleet: list[Engine]) -> str:
    verdict = facts.status.verdict
    outcome = verdict.outcome
    other = outcome not in ("unknown", "generator_bound")
    held = f"The run {'was' if facts.over else 'is'} {_low(named(outcome, verdict.cause))}" if other else ""
    running, waiting = (facts.value("generator_requests", state=state) for state in ("running", "waiting"))
    kv = facts.say("kv_cache_usage_ratio")
    measured = joined(
        f"{number(running)} requests running" if running is not None else "",
        (f"{number(waiting)} waiting" if waiting >= 0.5 else "none waiting") if waiting is not None else "",
        f"KV cache {kv} full" if kv else "",
        facts.say("generator_tokens_per_second"),
    )
    if not measured and not fleet:
        return "Add the engines' /metrics as targets, or the router's: rollscope watch http://127.0.0.1:8000"
    if not measured:
        return first_clause(_why(facts.find("generator_requests_now")))
    return joined(held, ("At the end: " if facts.over else "5 min means: ") + measured)


def _low(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _why(found: SignalNow | None) -> str:
    return found.why if found is not None else ""


def _up(shown: CardNow, facts: StatusFacts, fleet: list[Engine]) -> CardNow:
    """How many of how many, judged by those that are not."""
    counts = _counts(facts, fleet)
    total = sum(counts.values())
    if shown.value is None or not total:
        return shown
    state = "critical" if counts["down"] or counts["hung"] else "watch" if counts["silent"] else "ok"
    rest = [f"{count:.0f} {word}" for word, count in counts.items() if word != "up" and count]
    return structs.replace(
        shown,
        # An engine paused for a weight update counts as up: the card must not fall to 0 of 4 at each update.
        value=counts["up"] + counts["paused"] + counts["stale"],
        note=joined(f"of {total:.0f}", *rest),
        state=state,
        word="" if state == "ok" else state_word(facts, state),
    )


_STATES = ("up", "down", "hung", "silent", "stale", "paused", "asleep")


def _counts(facts: StatusFacts, fleet: list[Engine]) -> dict[str, float]:
    """Engines by state as the tick counts them; without a tick as they are read."""
    counts = {state: facts.value("generator_engines", state=state) for state in _STATES}
    if any(value is not None for value in counts.values()):
        return {state: value or 0.0 for state, value in counts.items()}
    return {state: float(sum(one.state == state for one in fleet)) for state in _STATES}


def _states(facts: StatusFacts, fleet: list[Engine]) -> View:
    """Keys ``engine_states.N``: how many engines are in a state, and its health; ``.weights``: served versions."""
    counts = {} if facts.over else _counts(facts, fleet)
    found = [
        {"count": f"{count:,.0f}", "state": word, "health": engines.HEALTH.get(word, "ok")}
        for word, count in counts.items()
        if count
    ]
    cells: View = {f"engine_states.{i}": row for i, row in enumerate(found)}
    kinds = joined(facts.kinds("generator"), facts.gpus("generator"))
    return cells | {"engine_states.kinds": kinds, "engine_states.weights": _weights(facts)}


def _weights(facts: StatusFacts) -> str:
    behind = facts.value("generator_staleness_versions", stat="max")
    version, stall = facts.value("policy_version"), facts.say("generator_weight_stall_seconds", stat="max")
    least, most = (facts.value("generator_weight_updates", stat=stat) for stat in ("min", "max"))
    updates = f"engines paused {stall} for weight updates" if stall else ""
    if least is not None and most is not None:
        count = number(least) + (f" to {number(most)}" if most != least else "")
        updates = f"{count} weight updates in 5 min" + (f" (engines paused {stall})" if stall else "")
    return joined(
        f"trainer at v{version:,.0f}" if version is not None else "",
        f"engines up to {number(behind)} versions behind" if behind else "engines up to date" if behind == 0 else "",
        updates,
    )


# ---- speed


def _speed(facts: StatusFacts) -> View:
    """``engine_speed``: what the chart draws; ``.note``: window and source; ``.none``: why it is empty, what to add."""
    found = facts.status.verdict.engine_speed
    if not found:
        has_engines = facts.value("generator_requests_now", state="running") is not None
        why = "No request runs" if has_engines else "Requests per engine unknown: add the engines' /metrics as targets"
        return {"engine_speed": None, "engine_speed.none": why + ".", "engine_speed.note": ""}
    if not found.alone:
        why = "No point yet: needs two minutes at one number of requests, and tokens/s in the engines' /metrics."
        return {"engine_speed": None, "engine_speed.none": why, "engine_speed.note": ""}
    running, seats, best = found.running, found.seats, found.best
    points, half, alone = found.points, found.half, found.alone
    most = seats or _WIDER * max(running, best or 0.0, points[-1][0])
    steps = [most * i / _CURVE_STEPS for i in range(_CURVE_STEPS + 1)]
    curves = zip(half, alone, strict=True)
    laws = [[round(r / (one * (1 + r / law)), 1) for r in steps] for law, one in curves]
    mid = half[1]
    at = {name: r for name, r in (("now", running if facts.present else None), ("best", best)) if r is not None}
    marks = [[name, r, round(r / (alone[1] * (1 + r / mid)), 1)] for name, r in at.items()]
    band = "fitted to the points" if found.fitted else "general, the run has not shown enough different loads"
    ends = "axis ends at the requests that fit" if seats else "how many requests fit is unknown"
    none = "" if best is not None else "best not known yet"
    return {
        "engine_speed": {
            "most": most, "x": steps, "laws": laws, "points": points, "marks": marks, "fitted": found.fitted,
        },
        "engine_speed.none": "",
        "engine_speed.note": joined(f"Band: {band}", _POINT, ends, none),
    }  # fmt: skip


_POINT = "a point is the mean of up to 10 min at its load, from the engines' /metrics"
# Parts of the drawn curve; the axis without known seats over the most requests that are shown.
_CURVE_STEPS, _WIDER = 32, 1.25


# ---- GPUs


def _gpus(facts: StatusFacts) -> View:
    """``gpus``: "absent" where no GPU reports; ``.none``: what to add; ``.note``: the GPUs that stand out."""
    errors = [one for one in facts.signals if one.signal == "gpu_fault" and one.value and "error" in one.labels]
    worst = joined(
        *(f"{one.labels['error']} on {_gpu(one)}" for one in errors[:_ERRORS]),
        *(
            f"{label} {_gpu(one)} ({text(one.value, one.unit)})"
            for label, signal in _WORST
            if (one := facts.find(signal, stat="worst")) is not None and one.value is not None
        ),
    )
    seen = any(facts.value(signal, stat="mean") is not None for _, signal in _WORST)
    absent = "" if seen else _why(facts.find("gpu_fleet_utilization_ratio")) or _NO_GPUS
    return {
        "gpus": "absent" if absent else "critical" if errors else "ok",
        "gpus.none": absent[:1].upper() + absent[1:],
        "gpus.note": worst,
    }


_ERRORS = 3
_NO_GPUS = "no GPU reports: add a DCGM exporter's :9400/metrics as a target"
_WORST = (
    ("hottest", "gpu_fleet_temperature_celsius"),
    ("least used", "gpu_fleet_utilization_ratio"),
    ("slowest clock", "gpu_fleet_clock_hertz"),
)


def _gpu(one: SignalNow) -> str:
    labels = one.labels
    return f"{labels.get('host', '')} GPU {labels.get('index') or labels.get('gpu', '?')}".strip()


# ---- roles, router, speculative decoding


def _roles(facts: StatusFacts, fleet: list[Engine]) -> View:
    """``roles``: as of the GPUs; ``.note``: engines by role. Without a role the group is not shown."""
    if all(facts.value("generator_role_requests", role=role, state="running") is None for role in _ROLES):
        return {"roles": "absent", "roles.none": "", "roles.note": ""}
    pools = [(role, [one for one in fleet if one.info.role == role]) for role in _ROLES]
    counts = (
        f"{len(pool)} {role} engine{'s' * (len(pool) != 1)}"
        + (f", {ill} not up" if (ill := sum(one.state != "up" for one in pool)) else "")
        for role, pool in pools
        if pool
    )
    return {"roles": "ok", "roles.none": "", "roles.note": joined(*counts)}


_ROLES = ("prefill", "decode")


def _router(facts: StatusFacts) -> View:
    """``router``, ``.none``, ``.note``: as of the GPUs."""
    known = [facts.value("router_workers_now", state=state) for state in ("registered", "healthy", "circuit_open")]
    registered, healthy, opened = known
    load = any(facts.value("router_requests", state=state) is not None for state in ("queued", "in_flight"))
    hits = facts.say("router_cache_hit_ratio")
    absent = "" if load or registered else _why(facts.find("router_requests")) or _NO_ROUTER
    ill = healthy is not None and registered is not None and healthy < registered
    return {
        "router": "absent" if absent else "critical" if ill or opened else "ok",
        "router.none": absent[:1].upper() + absent[1:],
        "router.note": joined(
            f"{number(healthy)} of {number(registered)} workers healthy" if healthy is not None and registered else "",
            f"{number(opened)} with an open circuit" if opened else "",
            f"{hits} sent where their prefix is cached" if hits else "",
        ),
    }


_NO_ROUTER = "no router reports: add its metrics port as a target (29000 by default)"


def _speculative(facts: StatusFacts) -> View:
    reported = any(facts.value(line.want.signal) is not None for panel in SPECULATIVE for line in panel.lines[:1])
    return {"speculative": "ok" if reported else "absent", "speculative.none": "", "speculative.note": ""}


# ---- room in the caches


def _room(facts: StatusFacts) -> View:
    """Keys ``kv_room.N``: numbers on one scale, as bars (width in percent); ``.next``, ``.why``: the forecast."""
    ceiling = facts.find(_CEILING)
    limit = ceiling.value if ceiling is not None else None
    wanted, asked = _wanted(facts), facts.number("max_in_flight")
    running = facts.value("generator_requests_now", state="running")
    rows = [
        ("KV ceiling", limit, "room"),
        ("running now", running, "over" if _beyond(running, limit) else "load"),
        ("running and waiting", wanted, "over" if _beyond(wanted, limit) else "load"),
        ("configured in flight", asked, "over" if _beyond(asked, limit) else "load"),
    ]
    shown = [(label, value, state) for label, value, state in rows if value is not None]
    top = max((value for _, value, _ in shown), default=0.0) or 1.0
    cells: View = {
        f"kv_room.{i}": {"label": label, "value": number(value), "width": round(100 * value / top, 1), "kind": state}
        for i, (label, value, state) in enumerate(shown)
    }
    silent = "" if limit is not None else _why(ceiling) or "KV ceiling not reported"
    return cells | _ahead(facts) | {"kv_room.none": silent[:1].upper() + silent[1:]}


def _wanted(facts: StatusFacts) -> float | None:
    counts = [facts.value("generator_requests_now", state=state) for state in ("running", "waiting")]
    return sum(value for value in counts if value is not None) if None not in counts else None


def _beyond(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value >= limit


def _ahead(facts: StatusFacts) -> View:
    """The forecast with its interval: the ends are those of the 95% interval of the slope."""
    low, mid, high = (facts.find(_FORECAST, bound=bound) for bound in ("low", "mid", "high"))
    if mid is None or mid.value is None:
        why = _why(mid or facts.find(_FORECAST))
        return {
            "kv_room.next": "No forecast" if why else "",
            "kv_room.why": why[:1].upper() + why[1:],
            "kv_room.s": "unknown",
        }
    reason = tight(_why(mid))
    shown = reason[:1].upper() + reason[1:]
    if mid.value <= 0:
        shown = reason.removeprefix("crossed: ")
        return {
            "kv_room.next": "Already reached",
            "kv_room.why": shown[:1].upper() + shown[1:],
            "kv_room.s": "critical",
        }
    ends = [text(end.value, "seconds") for end in (low, high) if end is not None and end.value is not None]
    between = f" (95% interval: {' to '.join(ends)})" if len(ends) == 2 else ""
    state = "watch" if mid.value < _SOON else "ok"
    return {
        "kv_room.next": f"Reached in {text(mid.value, 'seconds')}{between}",
        "kv_room.why": shown,
        "kv_room.s": state,
    }
