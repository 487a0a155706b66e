"""Which share of each pool of GPUs is idle, by cause. These are shares of time; the cost signals price them.

Idle is a GPU that could work and has nothing to work on. The trainer's are judged by the shares of its last 10 steps,
the engines' by the time within 5 minutes in which no request ran. Of one GPU each second has at most one cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from server.signals import kv_cache
from server.signals import trainer as signals_trainer
from server.signals.engine_state import HELD, Engine, engines
from server.signals.gpus import Pool, fleet
from server.signals.live_sequences import fleet as live
from server.signals.model import Answer, NotApplicable, Unknown, Value, View
from server.signals.step_windows import row_limit, too_few, total, window
from server.signals.tick_windows import whole_steps
from server.signals.trainer import OVER
from server.signals.window import Gauge, Step

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
    lacking = stalled if isinstance(stalled, Unknown) else too_few(rows, _NO_STEPS)
    if lacking is not None:
        return _whole("stalled", {}) if stalled is True else Idle(unknown={"trainer_wait": lacking.why})
    waited = window(view, wait, "trainer_step_seconds") if wait else []
    found = {"trainer_wait": _share(waited, wait)} if waited else {}
    told = [(cause, metric) for cause, metric in overheads if any((metric, ()) in row.values for row in rows)]
    found |= {cause: _share(rows, metric) for cause, metric in told}
    if stalled:
        return _whole("stalled", found)
    if not found and not wait:
        return Idle(unknown={"weight_sync": _NO_OVERHEAD})
    return Idle(_at_most_all(found), {"trainer_wait": no_wait} if wait and not waited else {})


def _stalled(view: View) -> bool | Unknown:
    """The last steps stay valid while another step may be in progress, also while the target does not answer."""
    stall, newest = signals_trainer.TRAINER_STALL_RATIO.compute(view), view.steps.newest_of_all()
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
    known = [one for one in engines(view) if one.state in ("down", "silent") or _RUNNING in one.series]
    if all(one.state in ("down", "silent") for one in known):
        # A network failure looks the same, so an engine that does not answer does not count as idle.
        return Idle(unknown=dict.fromkeys(_OF_ENGINES, "no engine answers") if known else {_OF_ENGINES[0]: _NO_ENGINE})
    start = max(view.now - whole_steps(view), view.running_since or 0.0)
    sums = dict.fromkeys(_OF_ENGINES, 0.0)
    for engine in known:
        for cause, share in _of_engine(engine, start, view.now):
            sums[cause] = sums.get(cause, 0.0) + share / len(known)
    down = sum(one.state in ("down", "silent") for one in known) / len(known)
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
    ceiling = kv_cache.KV_CONCURRENCY_LIMIT.compute(view)
    if isinstance(ceiling, (Unknown, NotApplicable)):
        return None, ceiling.why
    running, limit = sum(one.running for one in live(view)), ceiling[0].value
    return (
        (max(0.0, busy - answering * min(1.0, running / limit)), "") if limit > 0 else (None, "no room for a request")
    )
