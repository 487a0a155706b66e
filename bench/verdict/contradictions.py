"""Pairs of a verdict and a number of the same answer that cannot both be right, independent of the verdict's rules.

A verdict may be wrong without a contradiction; a contradiction is visible to the user in any case.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from server.query.types import Status
from server.signals.model import SYNC_MODES
from server.verdict.model import Verdict, VerdictInput

# A trainer that waits this share of its step is not matched with its generators.
WAIT_OF_UNMATCHED = 0.30
# A trainer that waits this share of its step is not the limiter.
WAIT_OF_STARVED = 0.50
# Two statements of one wait may differ by this much: windows differ a little.
WAIT_DIFFERENCE = 0.10
# Engines with fewer requests than this share of their slots (or of the rollouts in flight) are nearly idle.
IDLE_LOAD = 0.10
# Engines are nearly idle for this long before a verdict must not call them too few: weight updates pause them.
IDLE_SECONDS = 60.0
# Engines with this share of their slots in use are full.
FULL_OCCUPANCY = 0.90
# Requests that wait, as a share of those that run: full engines have a queue of their own.
FULL_WAITING = 0.10
# All engines are down for this long before a verdict must be `stalled`.
DEAD_SECONDS = 60.0
# Sandboxes that are queued or starting, as a share of all live ones: too many to be noise.
PENDING_SHARE = 0.20
# A cache that is used less than this evicts nothing for lack of room.
ROOMY_CACHE = 0.50
# A scorer with a smaller busy share is not the limiter.
IDLE_SCORER = 0.20
# Groups without a gradient below this share do not hold a run back.
FEW_FLAT_GROUPS = 0.20
# Weight updates below this share of the step do not hold a run back.
SHORT_SYNC = 0.05
# A quota used to this share grants nothing more.
QUOTA_USED = 0.95
# Limiters with a smaller share of the gap are remarks.
NAMED_SHARE = 0.05
UNKNOWN = "unknown"

WAITS = re.compile(r"waits (\d+)%")
MORE_ROLLOUTS = re.compile(r"(?i)(raise the rollouts in flight|more rollouts at once)")
# Evidence that states the wait of the judged steps next to that of the signal: no reader takes one for the other.
BOTH_WAITS = re.compile(r"(\d+)% of the time in its last \d+ steps? \((\d+)% in the last ten\)")
# A share that is written in whole percent.
ROUNDING = 0.0051
STARVED = ("orchestrator_bound", "sandbox_bound")


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict and what the same answer of the API reports.

    Attributes:
        verdict: as `Verdict.to_json`.
        signals: "name{label="value"}" -> value of those that are known.
        idle_seconds: for how long the engines have been nearly idle.
        dead_seconds: for how long no engine has answered.
    """

    verdict: Mapping[str, Any]
    signals: Mapping[str, float]
    facts: Mapping[str, str | float]
    mode: str
    idle_seconds: float = 0.0
    dead_seconds: float = 0.0

    @property
    def outcome(self) -> str:
        return str(self.verdict["outcome"])

    @property
    def cause(self) -> str:
        return str(self.verdict["cause"] or "")

    def number(self, name: str) -> float | None:
        value: float | None = self.verdict["numbers"].get(name)
        return value

    def named(self) -> Iterator[tuple[str, str]]:
        """(outcome, cause) of the verdict and of each limiter it names."""
        yield self.outcome, self.cause
        for limiter in self.verdict["limiters"]:
            if limiter["share"] >= NAMED_SHARE:
                yield limiter["outcome"], limiter["cause"]

    @property
    def waiting_ratio(self) -> float:
        """Requests that wait in the engines per request that runs."""
        running = self.signals.get('generator_requests{state="running"}', 0.0)
        return self.signals.get('generator_requests{state="waiting"}', 0.0) / max(1.0, running)


def engine_load(signals: Mapping[str, float], facts: Mapping[str, str | float]) -> float | None:
    """Requests in the engines now, of their slots; of the rollouts in flight where no fact has the slots."""
    running = signals.get('generator_requests_now{state="running"}')
    slots, engines = facts.get("max_num_seqs"), signals.get('generator_engines{state="up"}')
    if running is None:
        return None
    requests = running + signals.get('generator_requests_now{state="waiting"}', 0.0)
    if engines and isinstance(slots, int | float):
        return requests / (slots * engines)
    in_flight = sum(value for name, value in signals.items() if name.startswith("in_flight_rollouts{"))
    return requests / in_flight if in_flight else None


def no_engine(signals: Mapping[str, float]) -> bool:
    """Whether every engine is down or silent."""
    states = {name: value for name, value in signals.items() if name.startswith("generator_engines{")}
    gone = sum(states.get(f'generator_engines{{state="{state}"}}', 0.0) for state in ("down", "silent"))
    return gone > 0 and gone == sum(states.values())


@dataclass(frozen=True, slots=True)
class Rule:
    """A pair that excludes itself: a name for tables, the sentence for a reader, and the check."""

    name: str
    sentence: str
    contradicts: Callable[[Answer], bool]


def _sandboxes_without_sandboxes(answer: Answer) -> bool:
    return answer.facts.get("has_sandbox") == 0 and any(outcome == "sandbox_bound" for outcome, _ in answer.named())


def _queue_in_synchronous_run(answer: Answer) -> bool:
    queued = (("orchestrator_bound", "staleness_gate"), ("orchestrator_bound", "prompts"))
    return answer.mode in SYNC_MODES and any(pair in queued for pair in answer.named())


def _tools_while_sandboxes_pend(answer: Answer) -> bool:
    states = {name: value for name, value in answer.signals.items() if name.startswith("sandboxes{")}
    pending = sum(
        states.get(f'sandboxes{{state="{state}"}}', 0.0) for state in ("queued", "building_image", "starting")
    )
    is_tools = (answer.outcome, answer.cause) == ("sandbox_bound", "tool_time")
    return is_tools and pending > PENDING_SHARE * sum(states.values())


def _too_few_engines_that_idle(answer: Answer) -> bool:
    return answer.outcome == "generator_bound" and answer.idle_seconds >= IDLE_SECONDS


def _starved_engines_that_are_full(answer: Answer) -> bool:
    full = (answer.number("engine_occupancy_ratio") or 0.0) >= FULL_OCCUPANCY and answer.waiting_ratio >= FULL_WAITING
    return answer.outcome in STARVED and full


def _wait(answer: Answer) -> float:
    return answer.signals.get("trainer_wait_ratio", math.nan)


def _summary_wait_differs(answer: Answer) -> bool:
    found = WAITS.search(str(answer.verdict["summary"]))
    return found is not None and abs(int(found[1]) / 100 - _wait(answer)) > WAIT_DIFFERENCE


def _numbers_wait_differs(answer: Answer) -> bool:
    reported = answer.number("reported_wait_ratio")
    return reported is not None and abs(reported - _wait(answer)) > WAIT_DIFFERENCE


def _judged_wait(answer: Answer) -> float:
    """The wait of the judged steps where the evidence states both: after a change the signal covers older steps."""
    for item in answer.verdict["evidence"]:
        found = BOTH_WAITS.search(str(item["text"]))
        # The second share must be the signal's: otherwise the text explains no difference.
        if found is not None and abs(int(found[2]) / 100 - _wait(answer)) <= ROUNDING:
            exact, stated = answer.number("wait_ratio"), int(found[1]) / 100
            # The text states whole percent: 49.8% reads 50% and is below a limit of one half.
            return exact if exact is not None and abs(exact - stated) <= ROUNDING else stated
    return _wait(answer)


def _slow_trainer_that_waits(answer: Answer) -> bool:
    """An open step that lasts too long is not part of the signal, which covers ended steps."""
    is_slow = answer.outcome == "trainer_bound" and answer.cause != "open_step"
    return is_slow and _judged_wait(answer) >= WAIT_OF_STARVED


def _balanced_while_it_waits(answer: Answer) -> bool:
    return answer.outcome == "balanced" and _judged_wait(answer) >= WAIT_OF_UNMATCHED


def _cache_with_room(answer: Answer) -> bool:
    caused = answer.cause in ("kv_capacity", "preemption")
    return caused and answer.signals.get("kv_cache_usage_ratio", 1.0) < ROOMY_CACHE


def _gradients_are_there(answer: Answer) -> bool:
    flat = [value for name, value in answer.signals.items() if name.startswith("zero_advantage_ratio{")]
    return answer.outcome == "curriculum_bound" and bool(flat) and max(flat) < FEW_FLAT_GROUPS


def _at_quota(answer: Answer) -> bool:
    used = [value for name, value in answer.signals.items() if name.startswith("sandbox_quota_used_ratio{")]
    return max(used, default=0.0) >= QUOTA_USED and bool(MORE_ROLLOUTS.search(str(answer.verdict["advice"])))


RULES = (
    Rule(
        "sandboxes without sandboxes",
        "A run whose task uses no sandbox cannot be held back by one.",
        _sandboxes_without_sandboxes,
    ),
    Rule(
        "queue in a synchronous run",
        "A synchronous run has no queue and dispatches a whole batch: neither staleness nor dispatch holds it back.",
        _queue_in_synchronous_run,
    ),
    Rule(
        "tools while sandboxes pend",
        "Tool calls need a running sandbox: they are not the limit while a fifth of the sandboxes are still to start.",
        _tools_while_sandboxes_pend,
    ),
    Rule(
        "too few engines that idle",
        "Engines that have had nearly nothing to do for a minute are not too few.",
        _too_few_engines_that_idle,
    ),
    Rule(
        "starved engines that are full",
        "Engines with full slots and a queue of their own are not starved of rollouts.",
        _starved_engines_that_are_full,
    ),
    Rule(
        "balanced while it waits",
        "A trainer that waits 30 % of its step or more is not matched with its generators.",
        _balanced_while_it_waits,
    ),
    Rule(
        "slow trainer that waits",
        "A trainer that waits half of its step or more is not what the run waits for.",
        _slow_trainer_that_waits,
    ),
    Rule(
        "dead engines without a stall",
        "A run whose engines have all been down for a minute stands still: no other actor limits it.",
        lambda answer: answer.dead_seconds >= DEAD_SECONDS and answer.outcome not in ("stalled", UNKNOWN),
    ),
    Rule(
        "wait in numbers differs",
        "The verdict's own wait and the signal trainer_wait_ratio of the same answer differ by over 10 points.",
        _numbers_wait_differs,
    ),
    Rule(
        "wait in summary differs",
        "The wait in the summary and the signal trainer_wait_ratio of the same answer differ by over 10 points.",
        _summary_wait_differs,
    ),
    Rule(
        "full cache with room",
        "A cache that is not half full neither keeps requests out nor evicts them for lack of room.",
        _cache_with_room,
    ),
    Rule(
        "slow scorer that idles",
        "A scorer that is busy a fifth of the time or less is not what the run waits for.",
        lambda answer: (
            (answer.outcome, answer.cause) == ("reward_bound", "scoring")
            and answer.signals.get("scoring_busy_ratio", 1.0) < IDLE_SCORER
        ),
    ),
    Rule(
        "poor curriculum with gradients",
        "Where four of five groups carry a gradient, the choice of tasks does not hold the run back.",
        _gradients_are_there,
    ),
    Rule(
        "slow weight sync that is short",
        "Weight updates that take less than a twentieth of the step do not hold the run back.",
        lambda answer: answer.cause == "weight_sync" and answer.signals.get("weight_sync_ratio", 1.0) < SHORT_SYNC,
    ),
    Rule(
        "more rollouts at quota",
        "More rollouts need more sandboxes, and the provider's quota is used up.",
        _at_quota,
    ),
)
"""Every pair, in the order of the report."""


@dataclass(slots=True)
class Walker:
    """Checks the answers of one run in the order of time. `found`: rule -> (seconds, the verdict) of each tick."""

    found: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _idle_since: float | None = None
    _dead_since: float | None = None

    def status(self, at: float, status: Status) -> None:
        """One answer of the API. A run that has ended keeps its last verdict, and is not checked."""
        if status.lifecycle in ("finished", "crashed"):
            return
        signals = {signal.name: signal.value for signal in status.signals.values() if signal.value is not None}
        self.check(at, msgspec.to_builtins(status.verdict), signals, status.facts, status.mode)

    def seen(self, seen: VerdictInput, verdict: Verdict) -> None:
        """One tick of a run that is judged without a store."""
        signals = {
            _name(name, labels): value.value
            for name, series in seen.signals.items() for labels, value in series.items()
            if value.value is not None and not seen.stale(name, value.ts)
        }  # fmt: skip
        self.check(seen.now, msgspec.to_builtins(verdict), signals, seen.facts, seen.mode)

    def check(
        self, at: float, verdict: Mapping[str, Any], signals: Mapping[str, float], facts: Mapping[str, str | float],
        mode: str,
    ) -> None:  # fmt: skip
        load = engine_load(signals, facts)
        idle = load is not None and load < IDLE_LOAD
        self._idle_since = (at if self._idle_since is None else self._idle_since) if idle else None
        self._dead_since = (at if self._dead_since is None else self._dead_since) if no_engine(signals) else None
        answer = Answer(
            verdict, signals, facts, mode,
            idle_seconds=0.0 if self._idle_since is None else at - self._idle_since,
            dead_seconds=0.0 if self._dead_since is None else at - self._dead_since,
        )  # fmt: skip
        if answer.outcome == UNKNOWN:
            return
        for rule in RULES:
            if rule.contradicts(answer):
                words = f"{answer.outcome}/{answer.cause} {verdict['confidence']:.2f}: {verdict['summary']}"
                self.found.setdefault(rule.name, []).append((at, words))


def _name(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inside}}}" if inside else name


def report(found: Mapping[str, list[tuple[float, str]]], begin: float = 0.0) -> Iterator[str]:
    """One line for each rule that was broken: how often, and the first time."""
    for rule in RULES:
        if ticks := found.get(rule.name):
            yield f"{len(ticks):4} ticks {rule.name}; first after {ticks[0][0] - begin:.0f} s: {ticks[0][1][:110]}"
