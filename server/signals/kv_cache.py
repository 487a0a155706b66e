"""KV cache usage and the concurrency that it allows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from server.signals.aggregates import grown, last_sum, mean, total, window, window_sum
from server.signals.drift_detector import Trend, trend
from server.signals.engine_state import INPUTS, STALE_GAUGES, Engine, awake, current, engines
from server.signals.model import Answer, Fold, Unknown, Value, View, signal

# ---- live sequences
# How long the running sequences are, and how many of them the KV caches hold at that length.

# Below it a few fresh prompts and the blocks' rounding decide what a "mean length" is.
LOWEST_USAGE = 0.05


@dataclass(frozen=True, slots=True)
class LiveSequences:
    """One engine's mean over five minutes: sequences running, their tokens (None: not reported), share of the cache."""

    engine: Engine
    running: float
    tokens: float | None
    usage: float | None
    capacity: float | None

    @property
    def judged(self) -> bool:
        """Whether the cache holds enough to derive the length of a sequence."""
        filled = self.usage is not None and self.usage >= LOWEST_USAGE
        return filled and self.running > 0 and bool(self.tokens)


def fleet(view: View) -> list[LiveSequences]:
    """Engines that are awake and report their running requests."""
    found: list[LiveSequences] = view.once("live", _fleet)
    return found


def _fleet(view: View) -> list[LiveSequences]:
    found = (_live(engine, view) for engine in awake(view))
    return [one for one in found if one is not None]


def length(engines: Iterable[LiveSequences]) -> float | None:
    """Mean tokens of a running sequence, prompt and answer so far: a ratio of sums."""
    loads = [(one.tokens, one.running) for one in engines if one.tokens is not None]
    running = sum(count for _, count in loads)
    return sum(tokens for tokens, _ in loads) / running if running > 0 else None


def _live(engine: Engine, view: View) -> LiveSequences | None:
    def mean(metric: str) -> float | None:
        return engine.mean(metric, view)

    running, usage, capacity = mean("generator_requests_running"), mean("kv_cache_usage_ratio"), _capacity(engine)
    if running is None:
        return None
    by_usage = usage * capacity if usage is not None and capacity is not None else None
    # The engine's sum of lengths has precedence, because its cache counts a shared prompt once. A sum of 0 is not
    # reported: SGLang's sum is 0 until the first decode log.
    sources = (mean("live_sequence_tokens"), mean("kv_cache_used_tokens"), by_usage)
    tokens = next((one for one in sources if one), None if running else 0.0)
    if usage is None and tokens is not None and capacity:
        usage = tokens / capacity
    return LiveSequences(engine, running, tokens, usage, capacity)


def _capacity(engine: Engine) -> float | None:
    """Tokens the cache holds. Full-length sequences times their length is right with several pools, blocks are not."""

    def last(metric: str) -> float | None:
        gauge = engine.series.get(metric)
        return gauge.last if gauge is not None else None

    sequences, longest = last("kv_concurrency_limit"), last("generator_max_sequence_tokens")
    return sequences * longest if sequences and longest else last("kv_cache_capacity_tokens")


# ---- request ceiling
# How many requests the engines can run at once, at the length that sequences have now.

HINT = "no engine reports running requests with the usage and the size of its KV cache: add its /metrics as a target"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Of the fleet.

    Attributes:
        requests: at most that many run at once. holds: what the caches alone would hold.
        length: mean tokens of a running sequence.
    """

    requests: float
    holds: float
    length: float


def ceiling(view: View) -> Ceiling | Unknown:
    """The ceiling of the engines that are awake and report the inputs; cached per view."""
    found: Ceiling | Unknown = view.once("ceiling", _ceiling)
    return found


def _ceiling(view: View) -> Ceiling | Unknown:
    measured = [one for one in fleet(view) if one.capacity and one.usage is not None and one.tokens is not None]
    if not measured:
        asleep = any(engine.state == "asleep" for engine in engines(view))
        return Unknown("every engine is asleep" if asleep else HINT)
    mix = length(one for one in measured if one.judged)
    if mix is None:
        return Unknown(
            f"less than {LOWEST_USAGE:.0%} of the KV cache is in use, too little to estimate the length of sequences"
        )
    stated = view.fact("max_num_seqs")
    holds = [_holds(one, mix) for one in measured]
    requests = sum(_limited(one, held, stated) for one, held in zip(measured, holds, strict=True))
    return Ceiling(requests, sum(holds), mix)


def _holds(one: LiveSequences, others: float) -> float:
    """Requests that one cache holds.

    For a nearly empty engine the fleet's length is used, as its load will be alike.
    """
    own = length([one]) if one.judged else None
    return (one.capacity or 0.0) / (own or others)


def _limited(one: LiveSequences, holds: float, stated: float | None) -> float:
    """``stated``: the engines' limit by the run's configuration; the limit that an engine reports has precedence."""
    gauge = one.engine.series.get("generator_request_limit")
    limit = gauge.last if gauge is not None else stated
    return min(holds, limit) if limit is not None else holds


# ---- signals


@signal(
    title="KV cache",
    unit="ratio",
    actor="generator",
    inputs=("kv_cache_usage_ratio", "generator_asleep"),
    cadence="tick",
    hint="no engine reports KV cache usage: add its /metrics as a target",
    # 90 %: no room for a longer mix; 97 %: the engine preempts instead of admitting.
    watch=0.90,
    critical=0.97,
)
def kv_cache_usage_ratio(view: View) -> Answer:
    """Used share of the KV cache, mean over awake engines; time-weighted over 5 minutes of whole steps."""
    # An engine asleep holds no cache: counting its 0 would make a full fleet look half empty.
    asleep = {(gauge.target, gauge.labels) for gauge in view.fresh("generator_asleep") if gauge.last > 0}
    gauges = [gauge for gauge in current(view, "kv_cache_usage_ratio") if (gauge.target, gauge.labels) not in asleep]
    if not gauges and view.fresh("kv_cache_usage_ratio"):
        return Unknown("every engine is asleep" if asleep else STALE_GAUGES)
    if not gauges:
        return Unknown(kv_cache_usage_ratio.hint)
    return [Value(window_sum(view, gauges) / len(gauges))]


@signal(title="KV ceiling", unit="requests", actor="generator", inputs=INPUTS, cadence="tick", hint=HINT)
def kv_concurrency_limit(view: View) -> Answer:
    """Requests that the engines can run at once: KV capacity / mean length of running sequences, at most the engine's
    own limit (or the fact `max_num_seqs`), summed over engines. Unknown below 5% usage and while engines sleep.
    """
    found = ceiling(view)
    return found if isinstance(found, Unknown) else [Value(found.requests)]


# A point is a mean over whole steps, of five minutes at least (the window that it is read over) and an hour at most.
SHORTEST, LONGEST = 300.0, 3600.0
# An hour of short steps at least; three hours, or so many steps, are "at the present slope".
FEWEST, MOST = 12, 36
_CAPACITY = "in_flight_capacity_rollouts"
_LOAD = ("generator_requests_running", "generator_requests_waiting")


@dataclass(slots=True)
class Lengths:
    """The memory of the signal: live length over time.

    Attributes:
        at: the newest instant that is in it, epoch seconds. points: (middle of its time, mean length).
        begun, step: when the open point began, and the newest step then. area, ticks: sum of its lengths, how many.
    """

    at: float = 0.0
    begun: float = 0.0
    step: int = -1
    area: float = 0.0
    ticks: int = 0
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, now: float, step: int, length: float) -> None:
        """Adds the length as of an instant; an instant that is not newer is ignored."""
        if now <= self.at:
            return
        self.at = now
        took = now - self.begun
        if self.ticks and took >= SHORTEST and (step != self.step or step < 0 or took >= LONGEST):
            middle = ((self.begun + now) / 2, self.area / self.ticks)
            self.points = [*self.points[1 - MOST :], middle]
            self.ticks = 0
        if not self.ticks:
            self.begun, self.step, self.area = now, step, 0.0
        self.area, self.ticks = self.area + length, self.ticks + 1

    def saved(self) -> list[Any]:
        return [self.at, self.begun, self.step, self.area, self.ticks, self.points]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requests that shall run at once, and the source of that number."""

    requests: float
    words: str


def _wanted(view: View) -> Wanted | None:
    """From the configuration, else from the orchestrator, else the requests that run and wait now."""
    configured, capacity = view.fact("max_in_flight"), view.fresh(_CAPACITY)
    said, rollouts = "by configuration", configured or 0.0
    if rollouts <= 0:
        said, rollouts = "by the orchestrator's cap", last_sum(capacity)
    if rollouts > 0:
        share = _generating(view)
        words = f"{rollouts:.0f} rollouts in flight {said}"
        return Wanted(rollouts * (share or 1.0), words + (f", {share:.0%} of their time generating" if share else ""))
    running = [view.fresh(metric) for metric in _LOAD]
    now = sum(window_sum(view, gauges) for gauges in running)
    return Wanted(now, f"{now:.0f} requests running and waiting now") if now > 0 else None


def _generating(view: View) -> float | None:
    """Share of a rollout's time in which it is a request to the engines, where the trainer logs it."""
    names = ("rollout_model_seconds_mean", "rollout_seconds_mean")
    rows = window(view, *names)
    model, whole = (total(rows, name) for name in names)
    return min(1.0, model / whole) if model > 0 and whole > 0 else None


@signal(
    title="KV ceiling ahead",
    unit="seconds",
    actor="generator",
    inputs=tuple(dict.fromkeys((*INPUTS, *_LOAD, _CAPACITY))),
    cadence="tick",
    hint=HINT,
)
@Fold
def kv_concurrency_limit_forecast_seconds(memory: Any, view: View) -> tuple[Any, Answer]:
    """Time until the KV ceiling falls below the intended rollouts in flight (the fact `max_in_flight`, the
    orchestrator's cap, or what runs and waits now), at the current slope of the sequence length (Theil-Sen over up to
    36 points) and at the ends of its 95% interval. 0 if it is crossed; unknown without a trend.

    The length is that of the sequences that run now. A long rollout is observed more often than a short one, so the
    length is the measured counterpart of prompt + E[R^2] / 2 E[R] over the lengths of those that ended.
    """
    lengths = Lengths(*memory) if memory else Lengths()
    found = ceiling(view)
    if isinstance(found, Unknown):
        return memory, found
    newest = view.steps.newest_of_all()
    lengths.add(view.now, newest.number if newest is not None else -1, found.length)
    return lengths.saved(), _answer(view, found, lengths)


def _answer(view: View, found: Ceiling, lengths: Lengths) -> Answer:
    wanted = _wanted(view)
    if wanted is None:
        return Unknown("the intended number of rollouts in flight is unknown: state the fact `max_in_flight`")
    if found.requests <= wanted.requests:
        return _values((0.0, 0.0, 0.0), f"already crossed: {found.requests:.0f} requests fit, against {wanted.words}")
    slope = trend(lengths.points) if len(lengths.points) >= FEWEST else None
    if slope is None:
        return Unknown(f"{len(lengths.points)} of the {FEWEST} points of 5 minutes needed so far; no action needed")
    if slope.low <= 0:
        return Unknown(_no_growth(slope, found.length))
    # The ceiling is the caches' tokens divided by the length; it equals the wanted requests at this length.
    at_most = found.length * found.holds / wanted.requests
    now = median(length + slope.slope * (view.now - ts) for ts, length in lengths.points)
    low, mid, high = (max(0.0, at_most - now) / per for per in (slope.high, slope.slope, slope.low))
    said = f"at {at_most:.0f} tokens per sequence ({found.length:.0f} now, {slope.slope * 3600:+.0f} per hour)"
    return _values((low, mid, high), f"{said}, against {wanted.words}{_steps(view, mid)}")


def _no_growth(slope: Trend, length: float) -> str:
    low, high = (100 * 3600 * each / length for each in (slope.low, slope.high))
    said = "running sequences become shorter" if slope.high < 0 else "the length of running sequences has no trend"
    return f"{said}: {low:+.1f}% to {high:+.1f}% per hour; the ceiling does not fall"


def _steps(view: View, seconds: float) -> str:
    rows = window(view, "trainer_step_seconds")
    took = mean(rows, "trainer_step_seconds") if rows else 0.0
    return f": about {seconds / took:.0f} steps" if took > 0 else ""


def _values(seconds: tuple[float, float, float], why: str) -> list[Value]:
    bounds = zip(("low", "mid", "high"), seconds, strict=True)
    return [Value(value, (("bound", bound),), why) for bound, value in bounds]


@signal(
    title="Live sequence length",
    unit="tokens",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="no engine reports running requests together with the tokens in its KV cache: add its /metrics as a target",
)
def live_sequence_length_tokens(view: View) -> Answer:
    """Mean tokens of a running sequence over 5 minutes of whole steps: the engines' sum of lengths, or else the tokens
    in their KV caches, per running request.
    """
    measured = [one for one in fleet(view) if one.tokens is not None]
    found = length(measured)
    if found is not None:
        return [Value(found)]
    return Unknown("no request ran within 5 minutes" if measured else live_sequence_length_tokens.hint)


@signal(
    title="Prefix cache hits",
    unit="ratio",
    actor="generator",
    inputs=("prefix_cache_queries_total", "prefix_cache_hits_total", "prefix_cache_hit_ratio"),
    cadence="tick",
    hint="no engine reports its prefix cache: add its /metrics as a target",
)
def prefix_cache_hit_ratio(view: View) -> Answer:
    """Share of prompt tokens found in the prefix cache over 5 minutes, all engines together."""
    queries, hits = grown(view, "prefix_cache_queries_total"), grown(view, "prefix_cache_hits_total")
    if queries and hits is not None:
        return [Value(hits / queries)]
    ratios = view.fresh("prefix_cache_hit_ratio")
    if ratios and not queries:
        # Engines use their own window and do not report a weight, so the plain mean is used.
        return [Value(fmean(gauge.mean(view.now) for gauge in ratios))]
    return Unknown(
        prefix_cache_hit_ratio.hint if queries is None or hits is None else "no prompt was looked up within 5 minutes"
    )
