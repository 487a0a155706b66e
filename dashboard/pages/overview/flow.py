"""The strip of actors: generator to queue to trainer, weights back, and sandboxes."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, structs

from dashboard.pages.overview.banner import split
from dashboard.widgets.base import Quantity, state_word
from dashboard.widgets.format import STATE_WORDS, system, text
from dashboard.widgets.status import StatusFacts, View, engine_name, first_clause, joined, worst
from server.query.types import SignalNow, mode_words

# Engine states shown by name; engines that are down are counted with their targets.
STANDING = ("hung", "silent", "stale", "paused", "asleep")
# Of the KV cache: what lies closer to the mean is no tail.
TAIL = 0.05


class Actor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the run. ``bar``: 0 to 1, how full or busy it is."""

    sub: str
    state: str
    word: str = ""
    bar: float = 0.0
    numbers: tuple[Quantity, ...] = ()


class Arrow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What flows between two parts. ``limit``: in words where this flow limits the run."""

    figure: Quantity
    sub: str = ""
    limit: str = ""


def flow(facts: StatusFacts) -> View:
    """Cells ``actor.KEY``, ``arrow.KEY`` and ``weights``."""
    actors = {"generator": _generator(facts), "queue": _queue(facts), "trainer": _trainer(facts),
              "sandbox": _sandboxes(facts)}  # fmt: skip
    arrows = {"to_queue": _to_queue(facts), "to_trainer": _to_trainer(facts)}
    if facts.present and facts.status.verdict.named:
        found = facts.status.verdict
        roles = {**_ROLES.get(found.outcome, {}), **_CAUSED.get(found.cause or "", {})}
        actors = {key: _in_role(facts, key, one, roles.get(key)) for key, one in actors.items()}
        arrows = {key: structs.replace(one, limit=roles[key][0] if key in roles else "") for key, one in arrows.items()}
    sync = facts.say("weight_sync_seconds")
    cells: View = {f"actor.{key}": one for key, one in actors.items()}
    cells |= {f"arrow.{key}": one for key, one in arrows.items()}
    return cells | {"weights": joined("weights", f"sync {sync}" if sync else "")}


Role = tuple[str, Literal["limit", "waits", "works"]]
# What the parts of the run do while one of them limits it, by outcome: the part, its word, and its role.
_AFTER: Mapping[str, Role] = {"queue": ("Draining", "waits"), "trainer": ("Waiting", "waits")}
_ROLES: Mapping[str, Mapping[str, Role]] = {
    "generator_bound": {"generator": ("Saturated", "limit"), **_AFTER},
    "sandbox_bound": {"sandbox": ("Saturated", "limit"), "generator": ("Waiting", "waits"), **_AFTER},
    "reward_bound": {"to_queue": ("Scoring is the limit", "limit"), **_AFTER},
    "orchestrator_bound": {
        "to_queue": ("Dispatch is the limit", "limit"), "generator": ("Has room", "waits"), **_AFTER,
    },
    "curriculum_bound": {"to_trainer": ("Groups without a gradient are the limit", "limit")},
    "trainer_bound": {
        "trainer": ("Saturated", "limit"), "queue": ("Full", "waits"), "generator": ("Held back", "waits"),
    },
    "overhead_bound": {"trainer": ("In overhead", "limit"), "queue": ("Full", "waits")},
    "balanced": {actor: ("Balanced", "works") for actor in ("generator", "queue", "trainer")},
}  # fmt: skip
# By cause, where the outcome alone does not say it.
_CAUSED: Mapping[str, Mapping[str, Role]] = {
    "slow_engine": {"generator": ("Slow engine", "limit")},
    "long_tail": {"generator": ("Long tail", "limit")},
    "init_failures": {"sandbox": ("Failing", "limit")},
    "tool_time": {"sandbox": ("Slow tools", "limit")},
    "weight_sync": {"trainer": ("Updating weights", "limit")},
    "checkpoint": {"trainer": ("Saving", "limit")},
    "eval": {"trainer": ("Evaluating", "limit")},
    "dead_engine": {"generator": ("Down", "limit"), **_AFTER},
    "frozen_engine": {"generator": ("Hung", "limit"), **_AFTER},
    "dead_trainer": {"trainer": ("Down", "limit")},
    "collective_timeout": {"trainer": ("Hung", "limit")},
    "worker_died": {"trainer": ("Down", "limit")},
}


def _in_role(facts: StatusFacts, key: str, actor: Actor, role: Role | None) -> Actor:
    """A word for what it does. Red marks the limiter alone: what waits for it looks no worse than it is."""
    if actor.state == "not_applicable":
        return actor
    gone, down = facts.down(key)
    word, part = role or ("", "works")
    if gone == "critical" and part != "limit":
        word, tone = "Down", "critical"
    elif part == "limit":
        tone = "critical"
    elif part == "waits":
        tone = "watch" if down else "unknown"
    else:
        tone = "watch" if actor.state == "critical" else actor.state
        word = word if tone == "ok" else ""
    return structs.replace(actor, state=tone, word=word or STATE_WORDS[tone])


def _actor(
    facts: StatusFacts, sub: str, state: str, bar: float | None = None, numbers: Iterable[Quantity] = ()
) -> Actor:
    bar = round(min(1.0, max(0.0, bar)), 3) if bar is not None else 0.0
    return Actor(sub=sub, state=state, word=state_word(facts, state), bar=bar, numbers=tuple(numbers))


def _number(facts: StatusFacts, signal: str, label: str = "", unit: str | None = None, **labels: str) -> list[Quantity]:
    """A signal's value, where it has one. ``unit``: in place of its own."""
    found = facts.find(signal, **labels)
    if found is None or found.value is None:
        return []
    return [Quantity(found.value, found.unit if unit is None else unit, label)]


def _generator(facts: StatusFacts) -> Actor:
    now = "" if facts.over else " now"
    numbers = [
        *_number(facts, "generator_tokens_per_second", unit="tok/s"),
        *_number(facts, "generator_requests_now", f"running{now}", "", state="running"),
        *_number(facts, "generator_requests_now", f"waiting{now}", "", state="waiting"),
    ]
    kv = facts.value("kv_cache_usage_ratio")
    gone, down = facts.down("generator")
    standing = _standing(facts)
    hung = "critical" if "hung" in standing else ""
    fullest = facts.state("kv_cache_engine_usage_ratio", stat="max")
    states = (facts.state("kv_cache_usage_ratio"), fullest, facts.state("generator_requests"), gone, hung)
    kinds, gpus = facts.kinds("generator"), facts.gpus("generator")
    sub = joined(kinds, gpus, down, *standing.values(), *_tail(facts)) or "no engine source"
    share = split(facts).get("wait")
    if facts.synchronous and not numbers and share is not None:
        # The trainer times the generation that it does itself or waits for.
        return _actor(facts, sub, worst(states), share, [Quantity(share, "ratio", "of each step")])
    silence = facts.silence("kv_cache_usage_ratio") or facts.silence("generator_requests_now")
    return _actor(facts, joined(sub, "" if down else silence), worst(states), kv, numbers)


def _standing(facts: StatusFacts) -> dict[str, str]:
    """Engines that answer and do not work, by state: ``1 hung (vllm-3)``."""
    names: dict[str, list[str]] = {}
    for one in facts.named("generator_engine_state"):
        names.setdefault(one.labels["state"], []).append(_engine(one))
    found = {state: (facts.value("generator_engines", state=state), names.get(state, [])) for state in STANDING}
    return {
        state: f"{count:.0f} {state} ({', '.join(engines[:2])}{', ...' if count > 2 else ''})"
        for state, (count, engines) in found.items()
        if count and engines
    }


def _engine(one: SignalNow) -> str:
    return engine_name(one.labels["target"], one.labels)


def _tail(facts: StatusFacts) -> list[str]:
    """Engines that the fleet's mean hides, by name: the fullest cache of several, and the idlest engine."""
    found = []
    full = max(facts.named("kv_cache_engine_usage_ratio"), key=lambda one: one.value or 0.0, default=None)
    mean = facts.value("kv_cache_usage_ratio")
    # A fleet that is as full as its fullest engine has no tail.
    if full is not None and full.value is not None and mean is not None and full.value - mean >= TAIL:
        found.append(f"fullest {_engine(full)} {text(full.value, 'ratio')}")
    idle = [one for one in facts.named("generator_outlier_ratio") if one.labels["side"] == "idlest"]
    slow = [one for one in facts.named("generator_outlier_ratio") if one.labels["side"] == "slowest"]
    if one := min(slow, key=lambda one: one.value or 0.0, default=None):
        found.append(f"slowest {_engine(one)} ({text(one.value, 'ratio')} of the others' speed)")
    if one := min(idle, key=lambda one: one.value or 0.0, default=None):
        found.append(f"least busy {_engine(one)} ({text(one.value, 'ratio')} of the median)")
    return found


def _queue(facts: StatusFacts) -> Actor:
    batches = facts.value("queue_batches")
    numbers = [*_number(facts, "queue_samples_now"), *_number(facts, "queue_batches", "(5 min mean)")]
    state = worst((facts.state("queue_batches"), facts.state("queue_samples")))
    silence = facts.silence("queue_samples_now") or facts.silence("queue_batches")
    silent = {"not_applicable": "no queue in this mode", "unknown": silence or "depth not reported"}
    sub = silent.get(state, "left at the end" if facts.over else "ready for the trainer")
    # Full means one batch is ready: below that the trainer cannot start.
    return _actor(facts, sub, state, batches, numbers)


def _trainer(facts: StatusFacts) -> Actor:
    numbers = [*_number(facts, "trainer_step_seconds", "step"), *_number(facts, "trainer_mfu_ratio", "MFU")]
    version = facts.value("policy_version")
    numbers += [Quantity(text=f"v{version:,.0f}")] if version is not None else []
    gone, down = facts.down("trainer")
    wait, step = facts.state("trainer_wait_ratio"), facts.state("trainer_step_seconds")
    # A synchronous run has no wait, so its trainer is judged by its steps.
    states = (step if wait == "not_applicable" else wait, step, gone)
    framework = "" if facts.status.framework in ("", "unknown") else facts.status.framework
    names = system(framework) or facts.kinds("trainer")
    sub = joined(names, _mode(facts), facts.gpus("trainer"), down or _no_step(facts)) or "no trainer source"
    return _actor(facts, sub, worst(states), split(facts).get("compute"), numbers)


def _mode(facts: StatusFacts) -> str:
    """That the mode is unknown; a known mode is not shown."""
    if not facts.kinds("trainer") or facts.status.mode:
        return ""
    return f"mode {mode_words('', facts.status.facts)}"


def _no_step(facts: StatusFacts) -> str:
    """Why a trainer that is watched shows no step: since when, or that there was none yet."""
    silent = facts.silence("trainer_step_seconds")
    found = facts.find("trainer_step_seconds")
    if silent or facts.over or not facts.kinds("trainer") or found is None or found.value is not None:
        return silent
    return "no step yet" if facts.status.lifecycle == "starting" else first_clause(found.why)


def _sandboxes(facts: StatusFacts) -> Actor:
    """Running, starting and oldest pending sandboxes; or that the run uses none or has no source."""
    kinds, mine = facts.kinds("sandbox"), [s for s in facts.signals if s.signal.startswith("sandbox")]
    # Counters and credit are answered for runs that need none, too: the live ones decide.
    if facts.state("sandboxes") == "not_applicable" or worst(s.state for s in mine) == "not_applicable":
        return _actor(facts, "this run uses no sandboxes", "not_applicable")
    numbers = [
        *_number(facts, "sandboxes", "running", "", state="running"),
        *_number(facts, "sandboxes", "starting", "", state="starting"),
        *_number(facts, "sandbox_oldest_pending_seconds", "oldest pending"),
    ]
    gone, down = facts.down("sandbox")
    state = worst([gone, *(s.state for s in mine if not s.signal.endswith("_total"))])
    silence = "" if down else facts.silence("sandboxes", state="running")
    return _actor(facts, joined(kinds, down, silence) or "no sandbox source", state, None, numbers)


def _to_queue(facts: StatusFacts) -> Arrow:
    flight = facts.value("rollouts_in_flight")
    figure = Quantity(flight, "rollouts") if flight is not None else Quantity(text="rollouts")
    return Arrow(figure=figure, sub=_in_flight(facts, flight))


def _to_trainer(facts: StatusFacts) -> Arrow:
    done = facts.value("trainer_samples_per_second")
    figure = Quantity(done, "samples/s") if done is not None else Quantity(text="samples")
    return Arrow(figure=figure, sub=_used(facts, done))


def _in_flight(facts: StatusFacts, flight: float | None) -> str:
    if flight is not None:
        return "in flight at the end" if facts.over else "in flight"
    if facts.synchronous:
        return "directly into the step"
    return facts.silence("rollouts_in_flight") or "in flight: not reported"


def _used(facts: StatusFacts, done: float | None) -> str:
    able = facts.value("capacity_samples_per_second")
    if done is not None and able:
        return f"{text(done / able, 'ratio')} of capacity"
    if done is None:
        return facts.silence("trainer_samples_per_second") or "rate not reported"
    # Without a wait there is no capacity beyond what is used.
    return "" if facts.state("capacity_samples_per_second") == "not_applicable" else "capacity unknown"
