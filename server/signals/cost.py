"""What the run costs, and what of it is idle."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any

from server.signals import generator, kv_cache
from server.signals import sandboxes as signals_sandboxes
from server.signals import trainer as signals_trainer
from server.signals.aggregates import row_limit, too_few, total, whole_steps, window
from server.signals.engine_state import HELD, INPUTS, Engine, engines
from server.signals.gpus import Pool, fleet, gpu_key
from server.signals.kv_cache import fleet as live
from server.signals.model import (
    STEP_MINIMUM,
    STEP_WINDOW,
    Answer,
    Counter,
    Fold,
    NotApplicable,
    Unknown,
    Value,
    View,
    signal,
)
from server.signals.trainer import OVER
from server.signals.window import Gauge, Step

# ---- cost rate
# What the run costs an hour, and how many tokens it trained within its last 10 steps: restarts included.

SANDBOX = "sandbox_cost_usd_per_hour"
TOKENS = "trained_tokens"
_HINT = "this trainer reports no trained tokens"
# Seconds. Loading and compiling take 10 to 40 minutes. After a longer break it is unknown whether the run held the
# GPUs.
RESTART_SECONDS = 3600.0

Row = list[float]
"""[incarnation, step, event time, tokens trained]."""


def spend(view: View) -> tuple[float, str] | Unknown:
    """USD per hour of all GPUs, each once, and of the sandboxes; with remarks on their completeness."""
    pools = fleet(view.facts, view.mode).pools
    lacks = dict.fromkeys(pool.lacks for pool in pools if pool.lacks)
    if lacks:
        return Unknown("; ".join(lacks))
    usd, words = sum(pool.usd_per_hour or 0.0 for pool in pools), " + ".join(pool.words for pool in pools)
    basis = "; ".join(dict.fromkeys(pool.basis for pool in pools if pool.basis))
    said, sandboxes = f" ({basis})" if basis else "", signals_sandboxes.sandbox_cost_usd_per_hour.compute(view)
    if isinstance(sandboxes, NotApplicable):
        return usd, words + said
    if isinstance(sandboxes, Unknown):
        return usd, f"{words}{said}; sandboxes not included: their price is not set"
    return usd + sandboxes[0].value, f"{words} + sandboxes{said}"


def usd_per_million(usd_per_hour: float, tokens_per_second: float) -> float:
    return usd_per_hour / 3600 / tokens_per_second * 1e6


def trained(memory: Any, view: View) -> tuple[list[Row], float | Unknown]:
    """(memory, loss tokens per second of wall time) over the last 10 steps, across incarnations of the trainer.

    A step that a restart undid counts with its time, not with its tokens. ``memory``: the last rows, or None.
    """
    rows = _rows(memory or [], view)
    if len(rows) <= STEP_MINIMUM:
        done = max(0, len(rows) - 1)
        few = f"{done} of the {STEP_MINIMUM} steps needed so far, after a first one; no action needed"
        return rows, Unknown(few if rows else _HINT)
    limit = row_limit(view.steps)
    if view.now - rows[-1][2] > limit:
        return rows, Unknown(f"no step for more than {limit:.0f} s")
    window = view.fact("logging_steps")
    tokens = sum(after[3] * _stands_for(before, after, window) for before, after in pairwise(rows))
    seconds = sum(_seconds(before, after) for before, after in pairwise(rows))
    return rows, tokens / seconds if tokens > 0 and seconds > 0 else Unknown("no token was trained in the last steps")


def _rows(memory: Sequence[Row], view: View) -> list[Row]:
    """The newest rows with tokens, the one before the window first: those of earlier incarnations unless undone."""
    found = view.steps.rows((TOKENS, ()), count=STEP_WINDOW + 1, until=view.now)
    own = [[float(one.incarnation), float(one.number), one.ts, one.values[(TOKENS, ())]] for one in found]
    if not own:
        return list(memory)
    life, first = own[0][:2]
    return [*(row for row in memory if row[0] < life and row[1] < first), *own][-STEP_WINDOW - 1 :]


def _seconds(before: Row, after: Row) -> float:
    gap = max(0.0, after[2] - before[2])
    return gap if before[0] == after[0] else min(gap, RESTART_SECONDS)


def _stands_for(before: Row, after: Row, window: float | None) -> float:
    """Number of steps that a row is the mean of, as in `server.derive.deriver`."""
    return 1.0 if window is None else max(1.0, min(window, after[1] - before[1]))


# ---- idle shares
# Which share of each pool of GPUs is idle, by cause.

CAUSES = (
    "trainer_wait", "weight_sync", "checkpoint", "eval", "generator_idle", "generator_paused", "generator_down",
    "stalled", "starting", "paused",
)  # fmt: skip
"""Every cause, in the order of a reader's interest. One GPU's second is in at most one of them."""
# Always reported, with 0 if absent, because a line that ends would mean unknown.
_ALWAYS = ("stalled", "starting", "paused")
_OF_ENGINES = ("generator_idle", "generator_paused", "generator_down")

_OVERHEADS = (
    ("weight_sync", "trainer_weight_sync_seconds"),
    ("checkpoint", "trainer_checkpoint_seconds"),
    ("eval", "trainer_eval_seconds"),
)
STEP_INPUTS = (
    "trainer_step_seconds", "trainer_wait_seconds", "generation_seconds", *(metric for _, metric in _OVERHEADS),
)  # fmt: skip
_UNSEEN = "no target of this run has answered yet: whether its GPUs are held is not reported"
_NO_STEPS = "no trainer step so far: add the run's directory as a target"
_NO_OVERHEAD = "this trainer reports neither weight sync nor checkpoint time"
_NO_WAIT = "this trainer reports no wait time"
_NO_GENERATION = "this trainer reports no generation time, and no engine is attached"
_NO_ENGINE = "no engine that is attached reports its running requests: add the engines' /metrics"


@dataclass(frozen=True, slots=True)
class Idle:
    """A pool's idle shares (0..1) by cause; ``unknown``: why a cause's share is not known; ``underused`` in addition.

    Attributes:
        underused: share of the pool that its running engines leave, by their KV ceiling; None: not known.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    underused: float | None = None
    why: str = ""


Part = tuple[Pool, Idle]


def parts(view: View) -> list[Part]:
    """Every pool with its idle shares."""
    found: list[Part] = view.once("idle", _parts)
    return found


def over(view: View) -> NotApplicable | None:
    """Whether the run has ended: then it is unknown whether its GPUs are still paid for."""
    words = OVER.get(view.lifecycle) if view.lifecycle != "paused" else None
    return NotApplicable(f"{words}: whether its GPUs are still held is not reported") if words else None


def priced(view: View) -> Answer:
    """USD per hour by cause; unknown ones with their reason."""
    found = parts(view)
    if all(pool.usd_per_hour is None for pool, _ in found):
        return Unknown("; ".join(dict.fromkeys(pool.lacks for pool, _ in found)))
    usd = dict.fromkeys(_ALWAYS, 0.0)
    unknown: dict[str, str] = {}
    for pool, idle in found:
        if pool.usd_per_hour is None:
            unknown |= dict.fromkeys((*idle.shares, *idle.unknown), pool.lacks)
            continue
        unknown |= idle.unknown
        for cause, share in idle.shares.items():
            usd[cause] = usd.get(cause, 0.0) + share * pool.usd_per_hour
    for cause in (one for one in _ALWAYS if one in unknown and not usd[one]):
        del usd[cause]
    values = [Value(usd[cause], (("cause", cause),)) for cause in CAUSES if cause in usd]
    return values + [Value(float("nan"), (("cause", c),), unknown[c]) for c in CAUSES if c in unknown and c not in usd]


def _parts(view: View) -> list[Part]:
    found = fleet(view.facts, view.mode)
    if found.shared:
        judged = [(found.trainer, _shared(view))]
    else:
        judged = [(found.trainer, _trainer(view)), (found.generator, _generator(view))]
    if view.lifecycle == "starting" and _unseen(view):
        return [(pool, Idle(unknown={"starting": _UNSEEN})) for pool, _ in judged]
    if view.lifecycle in ("starting", "paused"):
        return [(pool, _whole(view.lifecycle, idle.shares)) for pool, idle in judged]
    return judged


def _unseen(view: View) -> bool:
    """Whether no target of the pool has answered yet. A wrong address looks the same and must not be priced as idle."""
    asked = [target for target in view.targets if not target.gone]
    return bool(asked) and all(target.last_ok_ts is None for target in asked)


def _whole(cause: str, others: Mapping[str, float]) -> Idle:
    """The whole pool idle for one cause, whatever its parts report."""
    return Idle({**dict.fromkeys(others, 0.0), cause: 1.0})


# ---- the trainer's GPUs


def _trainer(view: View) -> Idle:
    """Idle shares of a split run's trainer: it waits, generation runs elsewhere (alternating modes), or an overhead."""
    if view.synchronous:
        return _of_steps(view, "generation_seconds", "this trainer reports no generation time", _OVERHEADS)
    return _of_steps(view, "trainer_wait_seconds", _NO_WAIT, _OVERHEADS)


def _shared(view: View) -> Idle:
    """One pool for both: what is not trained on is generated on, and an evaluation is work.

    Where both happen at once, waiting is idle only as far as the engines are, too.
    """
    if view.synchronous:
        return _of_steps(view, "", "", _OVERHEADS[:2])
    found = _of_steps(view, "trainer_wait_seconds", _NO_WAIT, _OVERHEADS[:2])
    wait = found.shares.get("trainer_wait")
    if wait is None:
        return found
    idle, rest = _engines(view), {cause: share for cause, share in found.shares.items() if cause != "trainer_wait"}
    if idle.unknown:
        return Idle(rest, {"trainer_wait": _NO_ENGINE})
    return Idle({"trainer_wait": wait * sum(idle.shares.values()), **rest})


def _of_steps(view: View, wait: str, no_wait: str, overheads: Sequence[tuple[str, str]]) -> Idle:
    """Shares of the last 10 steps: ratios of sums. A stalled trainer is idle completely."""
    rows, stalled = window(view, "trainer_step_seconds"), _stalled(view)
    missing = stalled if isinstance(stalled, Unknown) else too_few(rows, _NO_STEPS)
    if missing is not None:
        return _whole("stalled", {}) if stalled is True else Idle(unknown={"trainer_wait": missing.why})
    waited = window(view, wait, "trainer_step_seconds") if wait else []
    found = {"trainer_wait": _share(waited, wait)} if waited else {}
    reported = [(cause, metric) for cause, metric in overheads if any((metric, ()) in row.values for row in rows)]
    found |= {cause: _share(rows, metric) for cause, metric in reported}
    if stalled:
        return _whole("stalled", found)
    if not found and not wait:
        return Idle(unknown={"weight_sync": _NO_OVERHEAD})
    return Idle(_at_most_all(found), {"trainer_wait": no_wait} if wait and not waited else {})


def _stalled(view: View) -> bool | Unknown:
    """The last steps stay valid while another step may be in progress, also while the target does not answer."""
    stall, newest = signals_trainer.trainer_stall_ratio.compute(view), view.steps.newest_of_all()
    if isinstance(stall, Unknown):
        late = newest is None or view.now - newest.ts > row_limit(view.steps)
        return stall if late else False
    return not isinstance(stall, NotApplicable) and stall[0].value >= 1


def _share(rows: Sequence[Step], metric: str) -> float:
    step = total(rows, "trainer_step_seconds")
    return max(0.0, total(rows, metric) / step) if step > 0 else 0.0


def _at_most_all(shares: Mapping[str, float]) -> dict[str, float]:
    """Phases that overlap in a framework's log are no more than the step."""
    whole = max(1.0, sum(shares.values()))
    return {cause: share / whole for cause, share in shares.items()}


# ---- the generator's GPUs


def _generator(view: View) -> Idle:
    """Idle shares of a split run's generator: from attached engines, else from the steps where both alternate."""
    found = _engines(view)
    if not found.unknown or not view.synchronous:
        return found
    rows = window(view, "generation_seconds", "trainer_step_seconds")
    if too_few(rows, _NO_GENERATION) is not None:
        return Idle(unknown={"generator_idle": _NO_GENERATION})
    return Idle({"generator_idle": max(0.0, 1 - _share(rows, "generation_seconds"))})


def _engines(view: View) -> Idle:
    """The mean over the attached engines; the others are assumed to be like them."""
    found: Idle = view.once("idle_engines", _of_engines)
    return found


def _of_engines(view: View) -> Idle:
    reporting = [one for one in engines(view) if one.state in ("down", "silent") or _RUNNING in one.series]
    if all(one.state in ("down", "silent") for one in reporting):
        # A network failure looks the same, so an engine that does not answer does not count as idle.
        return Idle(
            unknown=dict.fromkeys(_OF_ENGINES, "no engine answers") if reporting else {_OF_ENGINES[0]: _NO_ENGINE}
        )
    start = max(view.now - whole_steps(view), view.running_since or 0.0)
    sums = dict.fromkeys(_OF_ENGINES, 0.0)
    for engine in reporting:
        for cause, share in _of_engine(engine, start, view.now):
            sums[cause] = sums.get(cause, 0.0) + share / len(reporting)
    down = sum(one.state in ("down", "silent") for one in reporting) / len(reporting)
    underused, why = _underused(view, 1 - sum(sums.values()), 1 - down)
    return Idle(sums, {}, underused, why)


_RUNNING = "generator_requests_running"


def _of_engine(engine: Engine, start: float, now: float) -> Iterator[tuple[str, float]]:
    if engine.state in ("down", "silent"):
        yield "generator_down", 1.0
    elif engine.state == "hung":
        yield "stalled", 1.0
    else:
        running, held = engine.series[_RUNNING], [engine.series[one] for one in HELD if one in engine.series]
        yield from _of_pages(running, _held_at(held), start, now)


def _held_at(held: Sequence[Gauge]) -> set[float]:
    """Times of the pages that reported paused or asleep."""
    return {ts for gauge in held for ts, value in gauge.points if value > 0}


def _of_pages(running: Gauge, held: set[float], start: float, now: float) -> Iterator[tuple[str, float]]:
    """Shares of the time from `start` on that the pages cover: each holds until the next, at most for `carry`."""
    points = running.points
    if not held and 0.0 not in map(itemgetter(1), points):
        return  # the usual engine, and there may be a thousand
    covered, seconds = 0.0, {"generator_idle": 0.0, "generator_paused": 0.0}
    ends = [ts for ts, _ in list(points)[1:]] + [now]
    for (ts, value), end in zip(points, ends, strict=True):
        span = max(0.0, min(end, ts + running.carry) - max(ts, start))
        covered += span
        if ts in held:
            seconds["generator_paused"] += span
        elif value == 0:
            seconds["generator_idle"] += span
    yield from ((cause, spent / covered) for cause, spent in seconds.items() if covered > 0)


def _underused(view: View, busy: float, answering: float) -> tuple[float | None, str]:
    """What the engines that run leave of their KV ceiling, as a share of the pool."""
    ceiling = kv_cache.kv_concurrency_limit.compute(view)
    if isinstance(ceiling, (Unknown, NotApplicable)):
        return None, ceiling.why
    running, limit = sum(one.running for one in live(view)), ceiling[0].value
    return (
        (max(0.0, busy - answering * min(1.0, running / limit)), "") if limit > 0 else (None, "no room for a request")
    )


# ---- signals


@signal(
    title="Cost",
    unit="usd/h",
    actor="trainer",
    inputs=(SANDBOX,),
    cadence="tick",
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
def cost_usd_per_hour(view: View) -> Answer:
    """Dollars per hour: GPUs at the price of their type, counted once if trainer and generator share them, and
    sandboxes if their price is reported.
    """
    ended = over(view)
    if ended is not None:
        return ended
    found = spend(view)
    return found if isinstance(found, Unknown) else [Value(found[0], (), found[1])]


_RATES = (
    ("sampled", generator.generator_tokens_per_second),
    ("prefill", generator.generator_prompt_tokens_per_second),
)


@signal(
    title="Cost of a million tokens",
    unit="usd",
    actor="trainer",
    inputs=(TOKENS, "generator_tokens_total", "generator_prompt_tokens_total", SANDBOX),
    cadence="tick",
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
@Fold
def cost_usd_per_million_tokens(memory: Any, view: View) -> tuple[Any, Answer]:
    """Dollars of the whole run per million tokens: trained (loss tokens of the last 10 steps over the wall time between
    them, including restarts and evaluation), sampled and prefilled (5 minutes).

    Each is the whole cost of the run by one count of tokens: they are three views of one bill, not parts of it.
    """
    rows, rate = trained(memory, view)
    ended, found = over(view), spend(view)
    if ended is not None or isinstance(found, Unknown):
        return rows, ended or found  # type: ignore[return-value]
    rates = {"trained": rate, **dict(_generated(view))}
    return rows, [_value(of, found[0], rate) for of, rate in rates.items()]


def _generated(view: View) -> Iterator[tuple[str, float | Unknown]]:
    for of, rate in _RATES:
        answer = rate.compute(view)
        if isinstance(answer, Unknown):
            yield of, answer
        elif isinstance(answer, (list, tuple)):
            yield of, answer[0].value or Unknown("no token within 5 minutes")


def _value(of: str, usd_per_hour: float, rate: float | Unknown) -> Value:
    labels = (("of", of),)
    if isinstance(rate, Unknown):
        return Value(float("nan"), labels, rate.why)
    return Value(usd_per_million(usd_per_hour, rate), labels)


@signal(
    title="Cost over its target",
    unit="ratio",
    actor="trainer",
    inputs=(TOKENS, SANDBOX),
    cadence="tick",
    hint="no target price: set [run.NAME.cost] target_usd_per_million_tokens",
    watch=1.0,
)
@Fold
def cost_target_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Dollars per million trained tokens / target price of [run.NAME.cost]; above 1 the run is too expensive."""
    rows, rate = trained(memory, view)
    return rows, over(view) or _judged(view, rate)


def _judged(view: View, rate: float | Unknown) -> Answer:
    target = view.fact("target_usd_per_million_tokens")
    if target is None or target <= 0:
        return Unknown(cost_target_ratio.hint)
    found = spend(view)
    if isinstance(found, Unknown) or isinstance(rate, Unknown):
        return found if isinstance(found, Unknown) else rate  # type: ignore[return-value]
    return [Value(usd_per_million(found[0], rate) / target)]


@signal(
    title="Idle cost",
    unit="usd/h",
    actor="trainer",
    inputs=(*STEP_INPUTS, *INPUTS),
    cadence="tick",
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
def idle_usd_per_hour(view: View) -> Answer:
    """Dollars per hour of GPUs without work, by cause; the causes add up to the total. Trainer causes cover its last 10
    steps. Engine causes cover the last 5 minutes without requests, paused or down.

    The causes never add up to more than the cost of the GPUs.
    """
    return over(view) or priced(view)


@signal(
    title="Underused",
    unit="usd/h",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="set [run.NAME.cost]: how many GPUs the generator has, and their type or price (docs/concepts/cost.md)",
)
def underused_usd_per_hour(view: View) -> Answer:
    """Dollars per hour of working generator GPUs, times the free share of their KV ceiling. Low occupancy is not idle,
    so this is not part of idle_usd_per_hour.
    """
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


# Decode is bound by memory and training by tensor cores: neither alone says that a GPU works.
ACTIVITIES = ("gpu_tensor_active_ratio", "gpu_dram_active_ratio")
_ENGINES = "gpu_engine_active_ratio"


@signal(
    title="GPU activity",
    unit="ratio",
    actor="generator",
    inputs=(*ACTIVITIES, _ENGINES),
    cadence="tick",
    hint="no GPU reports its activity: add a DCGM exporter's :9400/metrics as a target",
)
def gpu_active_ratio(view: View) -> Answer:
    """Highest activity of tensor cores and memory per GPU, mean over GPUs; time-weighted over 5 minutes of whole steps.
    The activity of the engines counts only for a GPU that reports neither.
    """
    seconds = whole_steps(view)
    busiest: dict[tuple[str, str], float] = {}
    for metric in ACTIVITIES:
        for gauge in view.fresh(metric):
            key = gpu_key(gauge)
            busiest[key] = max(gauge.mean(view.now, seconds), busiest.get(key, 0.0))
    # The engines are busy while any kernel is resident, as in a collective that waits.
    engines = {gpu_key(gauge): gauge.mean(view.now, seconds) for gauge in view.fresh(_ENGINES)}
    busiest = engines | busiest
    return [Value(sum(busiest.values()) / len(busiest))] if busiest else Unknown(gpu_active_ratio.hint)


COUNTERS = (
    Counter(
        name="idle_usd_total",
        title="Idle cost so far",
        unit="usd",
        actor="trainer",
        help="Dollars of idle GPUs by cause: idle_usd_per_hour added up over the time between ticks. Gaps of more "
        "than a minute are not counted.",
        metric="idle_usd_per_hour",
        of="signal",
        by=("cause",),
    ),
)
"""Counters of this topic, which are counted as records arrive."""
