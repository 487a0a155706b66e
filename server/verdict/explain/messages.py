"""The summary of a verdict in one sentence, and the first change to make. Tables, no rules."""

from collections.abc import Mapping

from server.verdict.facts.steps import Late
from server.verdict.facts.throughput import Numbers
from server.verdict.model import Limiter, Outcome
from server.verdict.thresholds import FULL_QUOTA, SAME_WAIT

TITLES: Mapping[Outcome, str] = {
    "stalled": "The run makes no progress",
    "generator_bound": "Generation limits the run",
    "sandbox_bound": "Sandboxes limit the run",
    "reward_bound": "Scoring limits the run",
    "curriculum_bound": "The curriculum limits the run",
    "trainer_bound": "The trainer limits the run",
    "overhead_bound": "Overhead in the trainer's step limits the run",
    "orchestrator_bound": "The orchestrator limits the run",
    "balanced": "Generator and trainer are matched",
    "unknown": "The limiter is unknown",
}

ADVICE: Mapping[tuple[Outcome, str], str] = {
    ("stalled", "no_progress"): "Look at the trainer's log and its collectives; the step has been open for too long.",
    ("stalled", "dead_engine"): "Restart the engines that do not answer; nothing is generated meanwhile.",
    ("stalled", "frozen_engine"): "Restart the frozen engines; look for a hung collective or a weight update that "
    "never ended.",
    ("stalled", "collective_timeout"): "The trainer hangs in a collective. Look for the rank that did not join it: its "
    "log, its GPU (Xid, ECC) and its network. Then restart from the last checkpoint.",
    (
        "stalled",
        "worker_died",
    ): "Look at why the worker ended (out of memory, a lost node). If no step follows, restart "
    "from the last checkpoint.",
    ("stalled", "dead_trainer"): "The trainer's heartbeat is missing: check whether its process runs.",
    ("generator_bound", "kv_capacity"): "Give generation more KV memory: move GPUs to it, shorten the responses, or "
    "quantise the cache. More concurrency will not help.",
    ("generator_bound", "long_tail"): "Cut the tail: keep partial rollouts over weight updates, cap lengths, or "
    "oversample less and wait for fewer stragglers.",
    ("generator_bound", "preemption"): "Lower the requests per engine until none is preempted, or give the cache more "
    "memory.",
    ("generator_bound", "too_few_engines"): "Move GPUs from training to generation (see what-if), or raise the "
    "rollouts in flight if the engines have room.",
    (
        "generator_bound",
        "slow_engine",
    ): "Repair or remove the slow engine: requests wait for it while others have room.",
    ("generator_bound", "drift"): "Rollouts have become longer: move GPUs to generation, cap lengths or turns, or "
    "reward shorter ones.",
    ("generator_bound", "not_told"): "Add the engines' /metrics: whether they are full decides what to change.",
    ("sandbox_bound", "spin_up"): "Start sandboxes earlier: keep a warm pool, cache images, or start them before the "
    "prompt is dispatched.",
    ("sandbox_bound", "starting_limit"): "Raise the provider's limit on sandboxes starting at once, or keep a warm "
    "pool below it.",
    ("sandbox_bound", "init_failures"): "Fix the sandboxes that fail to start before tuning anything: their rewards "
    "of zero do not show whether the task is hard.",
    ("sandbox_bound", "quota"): "Raise the provider's quota or remove dangling sandboxes (rollscope preflight).",
    ("sandbox_bound", "tool_time"): "Make tool calls faster or run more rollouts at once: the engines wait for them.",
    ("reward_bound", "scoring"): "Score in parallel, or reuse what the verifier starts for each score.",
    ("curriculum_bound", "too_easy"): "Sample harder tasks: drop those that every rollout solves, or sample by solve "
    "rate.",
    ("curriculum_bound", "too_hard"): "Sample easier tasks first, or give partial credit: no rollout solves these.",
    ("curriculum_bound", "equal_rewards"): "The rewards of a group are equal: sample tasks of medium difficulty, or "
    "use finer-grained rewards.",
    ("trainer_bound", "compute"): "Move GPUs from generation to training (see what-if), or make the step faster.",
    ("trainer_bound", "other"): "Most of the step is neither waiting nor computing: profile the part that the trainer "
    "does not report.",
    ("trainer_bound", "open_step"): "Look at the trainer's log, its collectives and its disk: its batch is available, "
    "but one step takes many times its usual length.",
    ("overhead_bound", "weight_sync"): "Publish weights in the background, less often, or over a faster path.",
    ("overhead_bound", "checkpoint"): "Write checkpoints asynchronously or less often.",
    ("overhead_bound", "eval"): "Evaluate less often, on fewer tasks, or on separate engines.",
    ("orchestrator_bound", "staleness_gate"): "Production is held while the trainer waits: raise the staleness bound "
    "or publish more often.",
    ("orchestrator_bound", "prompts"): "Dispatch prompts faster: the in-flight limit is not reached.",
    ("orchestrator_bound", "tool_calls"): "Make tool calls faster or run more rollouts at once: the engines wait for "
    "them.",
    ("orchestrator_bound", "not_told"): "Look at the orchestrator's CPU and network: the engines idle and no "
    "other actor is busy.",
}
"""(outcome, cause) -> the first change to make."""


def opened(step: Late) -> str:
    """Returns e.g. ``The trainer's step after 412 has been open for 12 min, 24 times its usual length``."""
    after = f" after {step.after}" if step.after is not None else ""
    return f"The trainer's step{after} has been open for {span(step.seconds)}, {step.times:.2g} times its usual length"


def is_reported_wait(n: Numbers) -> bool:
    """Returns whether the wait of the judged steps is that of the signal, so that its text needs no steps."""
    return n.reported is None or abs((n.wait or 0.0) - n.reported) < SAME_WAIT


def wait(n: Numbers) -> str:
    """Returns the text on the trainer's wait, with its steps if they are not the last ten of the signal."""
    share = n.wait or 0.0
    if n.reported is None or is_reported_wait(n):
        # The number of the Trainer wait card, so that the two do not differ by a rounding.
        return f"the trainer waits {share if n.reported is None else n.reported:.0%} of each step"
    last = f"in its last {n.steps} steps" if n.steps > 1 else "in its open step"
    return f"the trainer waited {share:.0%} of the time {last} ({n.reported:.0%} in the last ten)"


def _fed(step: Late) -> str:
    if step.batches is not None:
        return f"{step.batches:.2g} batches wait in the queue"
    return f"{step.had or 0.0:.2g} batches waited in the queue when it began"


def span(seconds: float) -> str:
    """A duration with two significant digits or more, so that it does not jump: ``119 s``, then ``2 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def summary(outcome: Outcome, cause: str, n: Numbers, first: Limiter | None) -> str:
    """Returns one sentence with the most important number."""
    title = TITLES[outcome]
    waits = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound", "balanced")
    if outcome in waits and n.wait is not None:
        title += f": {wait(n)}"
    elif cause in ("collective_timeout", "worker_died") and (since := n.seen.fault_since) is not None:
        began = f"; it began {span(n.seen.now - since)} ago" if cause == "collective_timeout" else ""
        return f"{title}: {n.seen.facts['fault']}{began}"
    elif outcome == "stalled" and (hung := n.engines.get("hung")):
        # If half of the engines hang, the run still crawls, so the text states the engines only.
        title = f"{hung:.0f} of {sum(n.engines.values()):.0f} engines run requests and generate no token"
    elif cause == "open_step" and n.opened is not None:
        return f"{opened(n.opened)}; {_fed(n.opened)}"
    elif outcome == "stalled" and cause == "no_progress" and n.opened is not None and n.opened.late:
        return f"{title}: {opened(n.opened)[0].lower()}{opened(n.opened)[1:]}"
    elif outcome == "stalled" and cause == "dead_engine":
        title += ": no engine answers" + (f", and no step ended for {span(n.opened.seconds)}" if n.opened else "")
    if first is not None and first.text:
        return f"{title}{'; ' if ':' in title else ': '}{first.text}"
    return title


def advice(outcome: Outcome, cause: str, n: Numbers) -> str:
    dead = n.engines.get("down", 0.0) + n.engines.get("hung", 0.0)
    if (outcome, cause) == ("generator_bound", "too_few_engines") and dead:
        return "Restart the engines that do not work before moving any GPUs."
    if cause == "slow_engine" and n.slow:
        name = min(n.slow, key=lambda engine: n.slow[engine])
        return f"Repair or remove engine {name}: requests wait for it while the other engines have room."
    quota = max((value for _, value in n.seen.rows("sandbox_quota_used_ratio")), default=0.0)
    if (outcome, cause) == ("sandbox_bound", "tool_time") and quota >= FULL_QUOTA:
        return "Make tool calls faster: the engines wait for them, and the sandbox quota is used up."
    return ADVICE.get((outcome, cause), "")
