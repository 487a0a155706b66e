"""The strip of actors: generator to queue to trainer, weights back, and sandboxes."""

from collections.abc import Mapping
from typing import Literal

from dashboard.pages.overview.banner import split
from dashboard.state.format import STATE_WORDS, parts, system, text
from dashboard.state.status import StatusFacts, View, engine_name, first_clause, joined, worst
from server.query.types import SignalNow, mode_words

# Engine states shown by name; engines that are down are counted with their targets.
STANDING = ("hung", "silent", "stale", "paused", "asleep")
# Of the KV cache: what lies closer to the mean is no tail.
TAIL = 0.05


def flow(facts: StatusFacts) -> View:
    """Keys ``f.*``: per actor a subtitle, a state, a bar and up to three numbers; labels on the arrows."""
    cells = _generator(facts) | _queue(facts) | _trainer(facts) | _sandboxes(facts) | _arrows(facts)
    return cells | (_roles(facts, cells) if facts.present and facts.status.verdict.named else {})


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


def _roles(facts: StatusFacts, cells: View) -> View:
    """A word for what each part does. Red marks the limiter alone: what waits for it looks no worse than it is."""
    found = facts.status.verdict
    roles = {**_ROLES.get(found.outcome, {}), **_CAUSED.get(found.cause or "", {})}
    marks: View = {
        f"f.{arrow}.limit": roles[arrow][0] if arrow in roles else "" for arrow in ("to_queue", "to_trainer")
    }
    for actor in ("generator", "queue", "trainer", "sandbox"):
        state = cells[f"f.{actor}.s"]
        if state == "not_applicable":
            continue
        gone, down = facts.down(actor)
        word, role = roles.get(actor, ("", "works"))
        if gone == "critical" and role != "limit":
            word, tone = "Down", "critical"
        elif role == "limit":
            tone = "critical"
        elif role == "waits":
            tone = "watch" if down else "unknown"
        else:
            tone = "watch" if state == "critical" else str(state)
            word = word if tone == "ok" else ""
        marks |= {f"f.{actor}.s": tone} | ({f"f.{actor}.p": word} if word else {f"f.{actor}.p": STATE_WORDS[tone]})
    return marks


def _actor(key: str, sub: str, state: str, bar: float | None, numbers: list[tuple[str, str]]) -> View:
    cells: View = {
        f"f.{key}.sub": sub,
        f"f.{key}.s": state,
        f"f.{key}.p": STATE_WORDS.get(state, state),
        f"f.{key}.bar": round(100 * min(1.0, max(0.0, bar)), 1) if bar is not None else 0,
    }
    for i in range(3):
        figure, word = numbers[i] if i < len(numbers) else ("", "")
        cells |= {f"f.{key}.{i}.v": figure, f"f.{key}.{i}.u": word}
    return cells


def _numbers(facts: StatusFacts, *wanted: tuple[str, str, dict[str, str]]) -> list[tuple[str, str]]:
    """(figure, label) of the signals that have a value."""
    found = ((facts.value(signal, **labels), signal, label, labels) for signal, label, labels in wanted)
    return [
        (parts(value, _unit(facts, signal, labels))[0], label.format(u=parts(value, _unit(facts, signal, labels))[1]))
        for value, signal, label, labels in found
        if value is not None
    ]


def _unit(facts: StatusFacts, signal: str, labels: dict[str, str]) -> str:
    found = facts.find(signal, **labels)
    return found.unit if found else ""


def _generator(facts: StatusFacts) -> View:
    numbers = _numbers(
        facts,
        ("generator_tokens_per_second", "tok/s", {}),
        ("generator_requests_now", "running now", {"state": "running"}),
        ("generator_requests_now", "waiting now", {"state": "waiting"}),
    )
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
        return _actor("generator", sub, worst(states), share, [(parts(share, "ratio")[0], "% of each step")])
    silence = facts.silence("kv_cache_usage_ratio") or facts.silence("generator_requests_now")
    return _actor("generator", joined(sub, "" if down else silence), worst(states), kv, numbers)


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


def _queue(facts: StatusFacts) -> View:
    batches = facts.value("queue_batches")
    numbers = _numbers(facts, ("queue_samples_now", "{u}", {}), ("queue_batches", "{u}, 5 min mean", {}))
    state = worst((facts.state("queue_batches"), facts.state("queue_samples")))
    silence = facts.silence("queue_samples_now") or facts.silence("queue_batches")
    silent = {"not_applicable": "no queue in this mode", "unknown": silence or "depth not reported"}
    sub = silent.get(state, "left at the end" if facts.over else "ready for the trainer")
    # Full means one batch is ready: below that the trainer cannot start.
    return _actor("queue", sub, state, batches, numbers)


def _trainer(facts: StatusFacts) -> View:
    numbers = _numbers(
        facts,
        ("trainer_step_seconds", "{u} step", {}),
        ("trainer_mfu_ratio", "{u} MFU", {}),
    )
    version = facts.value("policy_version")
    numbers += [(f"v{version:,.0f}", "")] if version is not None else []
    gone, down = facts.down("trainer")
    wait, step = facts.state("trainer_wait_ratio"), facts.state("trainer_step_seconds")
    # A synchronous run has no wait, so its trainer is judged by its steps.
    states = (step if wait == "not_applicable" else wait, step, gone)
    framework = "" if facts.status.framework in ("", "unknown") else facts.status.framework
    names = system(framework) or facts.kinds("trainer")
    sub = joined(names, _mode(facts), facts.gpus("trainer"), down or _no_step(facts)) or "no trainer source"
    return _actor("trainer", sub, worst(states), split(facts).get("compute"), numbers)


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


def _sandboxes(facts: StatusFacts) -> View:
    """Running, starting and oldest pending sandboxes; or that the run uses none or has no source."""
    kinds, mine = facts.kinds("sandbox"), [s for s in facts.signals if s.signal.startswith("sandbox")]
    # Counters and credit are answered for runs that need none, too: the live ones decide.
    if facts.state("sandboxes") == "not_applicable" or worst(s.state for s in mine) == "not_applicable":
        return _actor("sandbox", "this run uses no sandboxes", "not_applicable", None, [])
    numbers = _numbers(
        facts,
        ("sandboxes", "running", {"state": "running"}),
        ("sandboxes", "starting", {"state": "starting"}),
        ("sandbox_oldest_pending_seconds", "{u} oldest pending", {}),
    )
    gone, down = facts.down("sandbox")
    state = worst([gone, *(s.state for s in mine if not s.signal.endswith("_total"))])
    silence = "" if down else facts.silence("sandboxes", state="running")
    return _actor("sandbox", joined(kinds, down, silence) or "no sandbox source", state, None, numbers)


def _arrows(facts: StatusFacts) -> View:
    flight, done = facts.value("rollouts_in_flight"), facts.value("trainer_samples_per_second")
    sync = facts.say("weight_sync_seconds")
    return {
        "f.to_queue": f"{parts(flight, '')[0]} rollouts" if flight is not None else "rollouts",
        "f.to_queue.sub": _in_flight(facts, flight),
        "f.to_trainer": text(done, "samples/s") if done is not None else "samples",
        "f.to_trainer.sub": _used(facts, done),
        "f.weights": joined("weights", f"sync {sync}" if sync else ""),
    }


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
