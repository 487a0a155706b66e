"""Single engines: state, load, outliers."""

from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from server.signals.aggregates import step_mean
from server.signals.engine_state import INPUTS, STATES, Engine, awake, engines, spread
from server.signals.generator import rate
from server.signals.model import Answer, NotApplicable, Unknown, Value, View, signal


@signal(
    title="Engines",
    unit="engines",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="no engine is a target yet: add its /metrics",
)
def generator_engines(view: View) -> Answer:
    """Engines by state: up, down, paused, asleep, hung (requests run and nothing moves for 60 s), silent (the page
    responds but no longer contains this engine's metrics), stale (idle, its gauges kept their last values).

    An engine that is paused on purpose is not hung.
    """
    counts = Tally(engine.state for engine in engines(view))
    return (
        [Value(float(counts[state]), (("state", state),)) for state in STATES]
        if counts
        else Unknown(generator_engines.hint)
    )


# Names are for inspection; a hundred of them are better shown as a count, which `generator_engines` has.
_GENERATOR_ENGINE_STATE_NAMED = 10


@signal(
    title="Engines that do not work",
    unit="",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="no engine is a target yet: add its /metrics",
)
def generator_engine_state(view: View) -> Answer:
    """1 for each engine that is now down, paused, asleep, hung, silent or stale, with its name; at most ten per
    state.
    """
    every = engines(view)
    if not every:
        return Unknown(generator_engine_state.hint)
    found = defaultdict(list)
    for engine in every:
        found[engine.state].append(tuple(sorted((*engine.named, ("state", engine.state)))))
    values = [
        Value(1.0, labels)
        for state in STATES
        if state != "up"
        for labels in found[state][:_GENERATOR_ENGINE_STATE_NAMED]
    ]
    return values or NotApplicable("every engine is up")


@signal(
    title="Requests per engine",
    unit="requests",
    actor="generator",
    inputs=("generator_requests_running", "generator_asleep"),
    cadence="tick",
    hint="no engine that is awake reports running requests: add its /metrics as a target",
)
def generator_engine_requests(view: View) -> Answer:
    """Running requests of the least busy, the average and the busiest awake engine; 5 minutes of whole steps.

    The fleet's mean hides that one engine idles while another is full.
    """
    means = (engine.mean("generator_requests_running", view) for engine in awake(view))
    measured = [mean for mean in means if mean is not None]
    return spread(measured) if measured else Unknown(generator_engine_requests.hint)


@signal(
    title="Tokens per engine",
    unit="tokens/s",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="no engine reports generated tokens: add its /metrics as a target",
)
def generator_engine_tokens_per_second(view: View) -> Answer:
    """Tokens generated per second by the slowest, the average and the fastest awake engine, over 5 minutes."""
    fleet = awake(view)
    measured = [found for engine in fleet if (found := rate(engine, view)) is not None]
    if measured:
        return spread(measured)
    if any("generator_tokens_total" in engine.shared for engine in fleet):
        return Unknown("the page counts the tokens of all its engines together")
    return Unknown("one page per engine so far; a rate needs two" if fleet else generator_engine_tokens_per_second.hint)


_RUNNING, _WAITING = "generator_requests_running", "generator_requests_waiting"
# Ratios to the others. Routers that balance by requests keep engines within a few percent of each other.
_IDLE, _BUSY = 0.5, 2.0
# Tokens per second and running request, of the others' median. Larger batches cost a healthy engine less than half.
_SLOW = 0.5
# A slow engine holds about as many requests as the others, or more, and generates no more tokens with them. An engine
# that gets more than its share of the requests generates more.
_SLOW_LOAD, _SLOW_TOKENS = 0.8, 1.25
# Below one request there is no load to compare.
_LEAST = 1.0
# Outliers that are listed on each side.
_GENERATOR_OUTLIER_RATIO_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Load:
    """An engine's five minutes. ``requests``: running and waiting; ``tokens``: per second, None: not reported."""

    engine: Engine
    requests: float
    running: float
    tokens: float | None

    @property
    def speed(self) -> float | None:
        """Tokens per second of one running request."""
        return self.tokens / self.running if self.tokens is not None and self.running > 0 else None


@signal(
    title="Uneven engines",
    unit="ratio",
    actor="generator",
    inputs=(_RUNNING, _WAITING, "generator_tokens_total", "generator_asleep"),
    cadence="tick",
    hint="no engine that is awake reports running requests: add its /metrics as a target",
)
def generator_outlier_ratio(view: View) -> Answer:
    """Requests (running and waiting) of the least and the most loaded engine / median of the others, 5 minutes of whole
    steps. Up to three slow engines are named: as many requests as the others, less than half of their tokens per second
    and running request. If none is slow, up to three with less than half of the load and three with more than twice the
    load.

    Each engine is compared with the median of the others: in a fleet of two the fleet's own median is half of each, and
    no engine can be above twice of it. Prefill engines are compared with prefill engines, decode with decode engines.
    """
    loads = _loads(view)
    fleets = [fleet for fleet in _by_role(loads) if len(fleet) > 1]
    if not fleets:
        return (
            NotApplicable("one engine has no others to compare with")
            if loads
            else Unknown(generator_outlier_ratio.hint)
        )
    fleets = [fleet for fleet in fleets if fleet[-1].requests >= _LEAST]
    if not fleets:
        return Unknown("the engines run nothing: there is no load to compare with")
    ratios = sorted((one for fleet in fleets for one in _ratios(fleet)), key=lambda found: found[0])
    slow = sorted((one for fleet in fleets for one in _slow(fleet)), key=lambda found: found[0])
    slow = slow[:_GENERATOR_OUTLIER_RATIO_NAMED]
    named = [_named(ratio, engine, "slowest") for ratio, engine in slow]
    if not slow:  # What a slow engine holds, and the others do not, follows from that.
        named += [
            _named(ratio, engine, "idlest")
            for ratio, engine in ratios[:_GENERATOR_OUTLIER_RATIO_NAMED]
            if ratio < _IDLE
        ]
        named += [
            _named(ratio, engine, "busiest")
            for ratio, engine in ratios[-_GENERATOR_OUTLIER_RATIO_NAMED:]
            if ratio > _BUSY
        ]
    return [*(Value(ratios[at][0], (("side", side),)) for at, side in ((0, "idlest"), (-1, "busiest"))), *named]


def _loads(view: View) -> list[_Load]:
    """Engines that are awake, by their requests."""
    waiting = {(one.target, one.labels): one for one in view.fresh(_WAITING)}
    found = []
    for engine in awake(view):
        running, queue = engine.mean(_RUNNING, view), waiting.get((engine.target, engine.labels))
        if running is not None:
            requests = running + (step_mean(view, queue) if queue is not None else 0.0)
            found.append(_Load(engine, requests, running, rate(engine, view)))
    return sorted(found, key=lambda one: (one.requests, one.engine.named))


def _by_role(loads: Sequence[_Load]) -> list[list[_Load]]:
    roles = sorted({one.engine.role for one in loads})
    return [[one for one in loads if one.engine.role == role] for role in roles]


def _ratios(fleet: Sequence[_Load]) -> Iterator[tuple[float, Engine]]:
    """(requests over the others' median, engine), ascending."""
    requests = [one.requests for one in fleet]
    for at, one in enumerate(fleet):
        yield one.requests / max(_LEAST, _others(requests, at)), one.engine


def _slow(loads: Sequence[_Load]) -> Iterator[tuple[float, Engine]]:
    """(speed over the others' median, engine) of each that is slower than half of it."""
    measured = [(speed, one) for one in loads if (speed := one.speed) is not None]
    speeds = sorted(speed for speed, _ in measured)
    requests = sorted(one.requests for _, one in measured)
    tokens = sorted(one.tokens or 0.0 for _, one in measured)
    for speed, one in measured if len(measured) > 1 else ():
        usual = _others(speeds, bisect_left(speeds, speed))
        if speed >= _SLOW * usual:
            continue
        held = _others(requests, bisect_left(requests, one.requests))
        made = _others(tokens, bisect_left(tokens, one.tokens or 0.0))
        if one.requests >= _SLOW_LOAD * held and (one.tokens or 0.0) <= _SLOW_TOKENS * made:
            yield speed / usual, one.engine


def _others(ordered: Sequence[float], at: int) -> float:
    """Median of ascending values without the one at an index; of at least two."""
    left = len(ordered) - 1
    low, high = (left - 1) // 2, left // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def _named(ratio: float, engine: Engine, side: str) -> Value:
    return Value(ratio, tuple(sorted((*engine.named, ("side", side)))))


# Share of the cache without room for longer sequences, as in the fleet's bands. Only the fullest engines are listed.
_FULL, _KV_CACHE_ENGINE_USAGE_RATIO_NAMED = 0.90, 3


@signal(
    title="KV cache per engine",
    unit="ratio",
    actor="generator",
    inputs=("generator_requests_running", "kv_cache_usage_ratio", "generator_asleep"),
    cadence="tick",
    hint="no engine that is awake reports KV cache usage: add its /metrics as a target",
    # A single engine that preempts is a warning; the fleet's mean reports that the whole fleet is full.
    watch=0.97,
)
def kv_cache_engine_usage_ratio(view: View) -> Answer:
    """Used share of the KV cache of the emptiest, the average and the fullest engine; 5 minutes of whole steps. Up to
    three engines at 90% or more are named.

    One full cache preempts while the fleet's mean looks fine.
    """
    means = ((engine.mean("kv_cache_usage_ratio", view), engine) for engine in awake(view))
    measured = sorted(
        ((mean, one) for mean, one in means if mean is not None), key=lambda pair: (-pair[0], pair[1].named)
    )
    if not measured:
        return Unknown(kv_cache_engine_usage_ratio.hint)
    full = [(mean, engine) for mean, engine in measured[:_KV_CACHE_ENGINE_USAGE_RATIO_NAMED] if mean >= _FULL]
    named = [Value(mean, tuple(sorted((*engine.named, ("stat", "full"))))) for mean, engine in full]
    return [*spread([mean for mean, _ in measured]), *named]
