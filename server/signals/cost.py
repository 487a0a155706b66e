"""What the run costs, and what of it is idle."""

from collections.abc import Iterator
from typing import Any

from server.signals import generator
from server.signals.cost_rate import SANDBOX, TOKENS, spend, trained, usd_per_million
from server.signals.engine_state import INPUTS
from server.signals.idle_shares import STEP_INPUTS, over, parts, priced
from server.signals.model import Answer, Counter, NotApplicable, Signal, Unknown, Value, View, fold
from server.signals.tick_windows import whole_steps

# ---- cost_usd_per_hour

# What the run costs an hour: its GPUs, each once, and its sandboxes.


def _cost_usd_per_hour(view: View) -> Answer:
    ended = over(view)
    if ended is not None:
        return ended
    found = spend(view)
    return found if isinstance(found, Unknown) else [Value(found[0], (), found[1])]


COST_USD_PER_HOUR = Signal(
    name="cost_usd_per_hour",
    title="Cost",
    unit="usd/h",
    actor="trainer",
    help="Dollars per hour: GPUs at the price of their type, counted once if trainer and generator share them, and "
    "sandboxes if their price is reported.",
    inputs=(SANDBOX,),
    cadence="tick",
    compute=_cost_usd_per_hour,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)


# ---- cost_usd_per_million_tokens

# What a million tokens cost: trained ones by the last 10 steps, sampled and prefilled ones by the last 5 minutes.
#
# Each is the whole cost of the run by one count of tokens: they are three views of one bill, not parts of it.

_RATES = (
    ("sampled", generator.GENERATOR_TOKENS_PER_SECOND),
    ("prefill", generator.GENERATOR_PROMPT_TOKENS_PER_SECOND),
)


def _cost_usd_per_million_tokens_remember(memory: Any, view: View) -> tuple[Any, Answer]:
    rows, rate = trained(memory, view)
    ended, found = over(view), spend(view)
    if ended is not None or isinstance(found, Unknown):
        return rows, ended or found  # type: ignore[return-value]
    rates = {"trained": rate, **dict(_generated(view))}
    return rows, [_value(of, found[0], rate) for of, rate in rates.items()]


def _generated(view: View) -> Iterator[tuple[str, float | Unknown]]:
    for of, signal in _RATES:
        answer = signal.compute(view)
        if isinstance(answer, Unknown):
            yield of, answer
        elif isinstance(answer, (list, tuple)):
            yield of, answer[0].value or Unknown("no token within 5 minutes")


def _value(of: str, usd_per_hour: float, rate: float | Unknown) -> Value:
    labels = (("of", of),)
    if isinstance(rate, Unknown):
        return Value(float("nan"), labels, rate.why)
    return Value(usd_per_million(usd_per_hour, rate), labels)


COST_USD_PER_MILLION_TOKENS = Signal(
    name="cost_usd_per_million_tokens",
    title="Cost of a million tokens",
    unit="usd",
    actor="trainer",
    help="Dollars of the whole run per million tokens: trained (loss tokens of the last 10 steps over the wall time "
    "between them, including restarts and evaluation), sampled and prefilled (5 minutes).",
    inputs=(TOKENS, "generator_tokens_total", "generator_prompt_tokens_total", SANDBOX),
    cadence="tick",
    **fold(_cost_usd_per_million_tokens_remember),
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)


# ---- cost_target_ratio

# Cost of a million trained tokens as a ratio of its target.

_COST_TARGET_RATIO_HINT = "no target price: set [run.NAME.cost] target_usd_per_million_tokens"


def _cost_target_ratio_remember(memory: Any, view: View) -> tuple[Any, Answer]:
    rows, rate = trained(memory, view)
    return rows, over(view) or _judged(view, rate)


def _judged(view: View, rate: float | Unknown) -> Answer:
    target = view.fact("target_usd_per_million_tokens")
    if target is None or target <= 0:
        return Unknown(_COST_TARGET_RATIO_HINT)
    found = spend(view)
    if isinstance(found, Unknown) or isinstance(rate, Unknown):
        return found if isinstance(found, Unknown) else rate  # type: ignore[return-value]
    return [Value(usd_per_million(found[0], rate) / target)]


COST_TARGET_RATIO = Signal(
    name="cost_target_ratio",
    title="Cost over its target",
    unit="ratio",
    actor="trainer",
    help="Dollars per million trained tokens / target price of [run.NAME.cost]; above 1 the run is too expensive.",
    inputs=(TOKENS, SANDBOX),
    cadence="tick",
    **fold(_cost_target_ratio_remember),
    hint=_COST_TARGET_RATIO_HINT,
    watch=1.0,
)


# ---- idle_usd_per_hour

# Cost per hour of GPUs without work, by cause. The causes add up, and never to more than the cost of the GPUs.


def _idle_usd_per_hour(view: View) -> Answer:
    return over(view) or priced(view)


IDLE_USD_PER_HOUR = Signal(
    name="idle_usd_per_hour",
    title="Idle cost",
    unit="usd/h",
    actor="trainer",
    help="Dollars per hour of GPUs without work, by cause; the causes add up to the total. Trainer causes cover its "
    "last 10 steps. Engine causes cover the last 5 minutes without requests, paused or down.",
    inputs=(*STEP_INPUTS, *INPUTS),
    cadence="tick",
    compute=_idle_usd_per_hour,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)


# ---- idle_usd_total

# Dollars that idle GPUs have cost since the run was first observed, by cause.

IDLE_USD_TOTAL = Counter(
    name="idle_usd_total",
    title="Idle cost so far",
    unit="usd",
    actor="trainer",
    help="Dollars of idle GPUs by cause: idle_usd_per_hour added up over the time between ticks. Gaps of more than a "
    "minute are not counted.",
    metric="idle_usd_per_hour",
    of="signal",
    by=("cause",),
)


# ---- underused_usd_per_hour

# Unused part of the KV ceiling of running engines, in dollars per hour: in addition to idle cost, never part of it.

_UNDERUSED_USD_PER_HOUR_HINT = (
    "set [run.NAME.cost]: how many GPUs the generator has, and their type or price (docs/concepts/cost.md)"
)


def _underused_usd_per_hour(view: View) -> Answer:
    return over(view) or _priced(view)


def _priced(view: View) -> Answer:
    found = parts(view)
    if len(found) == 1:
        return NotApplicable("trainer and generator share their GPUs: what one does not use, the other may use")
    pool, idle = found[-1]
    if pool.usd_per_hour is None:
        return Unknown(pool.lacks)
    if idle.underused is None:
        return Unknown(idle.why or "how full the engines are is unknown")
    return [Value(idle.underused * pool.usd_per_hour)]


UNDERUSED_USD_PER_HOUR = Signal(
    name="underused_usd_per_hour",
    title="Underused",
    unit="usd/h",
    actor="generator",
    help="Dollars per hour of working generator GPUs, times the free share of their KV ceiling. Low occupancy is not "
    "idle, so this is not part of idle_usd_per_hour.",
    inputs=INPUTS,
    cadence="tick",
    compute=_underused_usd_per_hour,
    hint=_UNDERUSED_USD_PER_HOUR_HINT,
)


# ---- gpu_active_ratio

# How busy the GPUs are: the maximum of tensor cores, memory and engines of each, averaged over GPUs that report.

# Decode is bound by memory and training by tensor cores: neither alone says that a GPU works.
ACTIVITIES = ("gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_engine_active_ratio")
_GPU_ACTIVE_RATIO_HINT = "no GPU reports its activity: add a DCGM exporter's :9400/metrics as a target"


def _gpu_active_ratio(view: View) -> Answer:
    seconds = whole_steps(view)
    busiest: dict[tuple[str, str], float] = {}
    for metric in ACTIVITIES:
        for gauge in view.fresh(metric):
            labels = dict(gauge.labels)
            # Two exporters of one host report the same GPU; without a UUID an index is unique only within its target.
            gpu = labels.get("gpu", "")
            key = (gpu if gpu != labels.get("index") else f"{gauge.target} {gpu}", labels.get("mig", ""))
            busiest[key] = max(gauge.mean(view.now, seconds), busiest.get(key, 0.0))
    return [Value(sum(busiest.values()) / len(busiest))] if busiest else Unknown(_GPU_ACTIVE_RATIO_HINT)


GPU_ACTIVE_RATIO = Signal(
    name="gpu_active_ratio",
    title="GPU activity",
    unit="ratio",
    actor="generator",
    help="Highest activity of tensor cores, memory and engines per GPU, mean over GPUs; time-weighted over 5 minutes "
    "of whole steps.",
    inputs=ACTIVITIES,
    cadence="tick",
    compute=_gpu_active_ratio,
    hint=_GPU_ACTIVE_RATIO_HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    COST_USD_PER_HOUR,
    COST_USD_PER_MILLION_TOKENS,
    COST_TARGET_RATIO,
    IDLE_USD_PER_HOUR,
    IDLE_USD_TOTAL,
    UNDERUSED_USD_PER_HOUR,
    GPU_ACTIVE_RATIO,
)
