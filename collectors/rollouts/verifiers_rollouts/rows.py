"""Turns one saved episode of verifiers into rollouts: one per trace, as rewards, advantages and batches are per trace.

Source: verifiers 0.4.0 (v1/trace.py, graph.py, episode.py, errors.py) and prime-rl 559b4477 (dispatcher.py,
`emit_episode`).

- `run.work.policy` is the span of live policy versions during the episode. Its start is the version at the dispatch of
  the *group*, so the true start of a member that began later may be newer. Only if no update happened during the group
  do all members have one version, and only then their turns have one.
- Rewards are `{name: {score, weight}}`, null when scoring did not run; the sum is not saved. Tokens are those of the
  provider's `usage`: `prompt_tokens` leaves out what came from the cache.
- Traces of agents that are not trained (a judge, an opponent) have the purpose ``judge`` and no group.
- An episode that fails before any trace (its server died) is one rollout, under the episode's id.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collectors.formats import slim, verifiers
from collectors.formats.jsonl import number
from collectors.formats.shapes import mapping, objects, whole
from collectors.model import Exit, Purpose, Rollout, Span, Turn
from collectors.rollouts.verifiers_rollouts.settings import Settings
from collectors.transport import rest

# Turns stored per rollout; the count of turns is exact.
TURNS_MAX = 2_000
# Errors of the machines between policy and task; other errors are of the task's own code, its tools or harness.
INFRASTRUCTURE = frozenset(
    ("SandboxError", "ProviderError", "InterceptionError", "TunnelError", "TimeoutError", "ConnectionError", "OSError")
)
TRUNCATED = frozenset(("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"))

Object = Mapping[str, Any]


def rollouts(episode: Object, settings: Settings, arrived: float | None) -> list[Rollout]:
    """The rollouts of an ended episode.

    Args:
        arrived: end of an episode without times, epoch seconds; None if unknown.
    """
    traces = objects(episode.get("traces"))
    if not traces:
        rollout = _failed(episode, settings, arrived)
        return [rollout] if rollout is not None else []
    trained = sum(map(trainable, traces))
    return [rollout for trace in traces if (rollout := _rollout(trace, episode, settings, trained)) is not None]


def trainable(trace: Object) -> bool:
    """Returns whether its tokens train the policy."""
    return mapping(trace, "agent").get("trainable") is not False


def trace_id(trace: Object) -> str:
    """Its identity within the run; "" for none."""
    return rest.text(trace.get("id"), 100)


def group_of(episode: Object) -> str:
    """The group it was dispatched in; "" for none."""
    return rest.text(mapping(episode, "group").get("id"), 100)


def purpose(episode: Object) -> Purpose | None:
    """The purpose of the episode as logged."""
    run = mapping(episode, "run")
    kind = mapping(run, "work").get("type") or run.get("type")
    return "eval" if kind == "eval" else "train" if kind == "train" else None


def versions(episode: Object) -> tuple[int | None, int | None]:
    """Policy versions at the dispatch of its group and at its end; None for a model that is not trained."""
    policy = mapping(episode, "run", "work", "policy")
    return whole(policy.get("start")), whole(policy.get("end"))


def reward(trace: Object) -> float | None:
    """Sum of score x weight; None if scoring did not run."""
    scored = [component for component in mapping(trace, "rewards").values() if isinstance(component, dict)]
    values = [_value(component) for component in scored]
    valid_values = [value for value in values if value is not None]
    return sum(valid_values) if valid_values and len(valid_values) == len(values) else None


def _value(component: Object) -> float | None:
    score, weight = number(component.get("score")), number(component.get("weight", 1.0))
    return score * weight if score is not None and weight is not None else None


def _rollout(trace: Object, episode: Object, settings: Settings, trained: int) -> Rollout | None:
    identity = trace_id(trace)
    if not identity:
        return None
    is_trained, start, end = trainable(trace), *versions(episode)
    failed = trace.get("ok") is False
    environment, timing = verifiers.environment(episode), mapping(trace, "timing")
    calls = [call for call in objects(trace.get("calls")) if not isinstance(call.get("error"), dict)]
    turns = _turns(trace, start if start == end else None)
    prompt, answered = _tokens(trace, calls)
    rollout_purpose = purpose(episode) if is_trained else "judge"
    return Rollout(
        identity,
        group_id=group_of(episode) if is_trained else "",
        # Traces of several agents form one group of unknown size.
        group_size=settings.group_size(environment, rollout_purpose)
        if is_trained and trained == 1 and group_of(episode)
        else None,
        purpose=rollout_purpose,
        environment=environment,
        agent=rest.text(mapping(trace, "agent").get("name"), 100),
        version_dispatched=start if is_trained else None,
        version_start=start if is_trained else None,
        version_finish=end if is_trained else None,
        started_at=rest.epoch(timing.get("start")),
        finished_at=_at(timing, "agent", "end") or verifiers.ended(trace),
        scored_at=_at(timing, "scoring", "end") if reward(trace) is not None else None,
        prompt_tokens=prompt,
        response_tokens=answered,
        loss_tokens=_loss_tokens(trace) if is_trained else None,
        turns=tuple(turns[:TURNS_MAX]),
        turn_count=len(turns),
        tool_calls=sum(call.tool_calls or 0 for call in turns),
        sandbox_ids=_sandboxes(trace),
        reward=reward(trace),
        truncated=_truncated(trace, calls),
        exit=_exit(trace) if failed else None,
        exited_at=verifiers.ended(trace) if failed else None,
        error=verifiers.last_error(trace) if failed else "",
        spans=tuple(_spans(trace, calls, start if start == end else None)),
    )


def _failed(episode: Object, settings: Settings, arrived: float | None) -> Rollout | None:
    """An episode with nothing but its failure."""
    identity, rollout_purpose = rest.text(episode.get("id"), 100), purpose(episode)
    if not identity or episode.get("ok") is not False:
        return None
    error, environment, (start, end) = verifiers.last_error(episode), verifiers.environment(episode), versions(episode)
    return Rollout(
        identity,
        group_id=group_of(episode),
        group_size=settings.group_size(environment, rollout_purpose) if group_of(episode) else None,
        purpose=rollout_purpose,
        environment=environment,
        version_dispatched=start,
        version_finish=end,
        finished_at=arrived,
        exit="infra_error" if error in INFRASTRUCTURE else "env_error",
        error=error,
    )


def _at(timing: Object, phase: str, end: str) -> float | None:
    return rest.epoch(mapping(timing, phase).get(end))


def _exit(trace: Object) -> Exit:
    infrastructure = verifiers.lost(trace) or verifiers.last_error(trace) in INFRASTRUCTURE
    return "infra_error" if infrastructure else "env_error"


def _truncated(trace: Object, calls: Sequence[Object]) -> bool | None:
    """Truncated by a limit of the framework, or in the last answer; None before any answer."""
    if rest.text(trace.get("stop_condition"), 60) in TRUNCATED:
        return True
    return calls[-1].get("finish_reason") == "length" if calls else None


def _sandboxes(trace: Object) -> tuple[str, ...]:
    if verifiers.runtime_kind(trace) in verifiers.NO_SANDBOX:
        return ()
    # As in a sandbox's record: a refused creation has no id, only the name that it would have had.
    sandbox_id = rest.text(mapping(trace, "agent", "runtime").get("id"), 200) or trace_id(trace)
    return (sandbox_id,)


def _turns(trace: Object, version: int | None) -> list[Turn]:
    """One turn per answer of the model; prefilled messages are not turns."""
    sampled = (node for node in objects(trace.get("nodes")) if node.get("sampled") is True)
    return [Turn(version=version, tool_calls=_tool_calls(node)) for node in sampled]


def _tool_calls(node: Object) -> int:
    # None is left out in the file, so an answer without the key made no call.
    called = mapping(node, "message").get("tool_calls")
    return len(called) if isinstance(called, list) else 0


def _loss_tokens(trace: Object) -> int | None:
    counts = [slim.true_count(node.get("mask")) for node in objects(trace.get("nodes"))]
    valid_counts = [count for count in counts if count is not None]
    return sum(valid_counts) if valid_counts else None


def _tokens(trace: Object, calls: Sequence[Object]) -> tuple[int | None, int | None]:
    """Input tokens (each once, even if sent again) and generated tokens."""
    used = {index: usage for index, call in enumerate(calls) if (usage := _usage(call)) is not None}
    if not used:
        return None, None
    parents = _predecessors(trace, calls)
    prompt = 0
    for index, (fed, _) in used.items():
        before = used.get(parents.get(index, -1))
        prompt += max(0, fed - sum(before)) if before is not None else fed
    return prompt, sum(answered for _, answered in used.values())


def _usage(call: Object) -> tuple[int, int] | None:
    usage = mapping(call, "usage")
    fresh, answered = whole(usage.get("prompt_tokens")), whole(usage.get("completion_tokens"))
    if fresh is None or answered is None:
        return None
    return fresh + (whole(usage.get("cached_input_tokens")) or 0), answered


def _predecessors(trace: Object, calls: Sequence[Object]) -> dict[int, int]:
    """Call -> the call whose answer its prompt continues, by the graph of messages."""
    raw = trace.get("nodes")
    nodes = raw if isinstance(raw, list) else []
    by_node = {node: index for index, call in enumerate(calls) if (node := whole(call.get("node"))) is not None}
    nearest: dict[int, int] = {}
    predecessors: dict[int, int] = {}
    for node_index, node in enumerate(nodes):
        parent = whole(node.get("parent")) if isinstance(node, dict) else None
        # A parent comes before its children, so its own answer is in the map.
        before = nearest.get(parent) if parent is not None and parent < node_index else None
        if (call_index := by_node.get(node_index)) is not None:
            if before is not None:
                predecessors[call_index] = before
            nearest[node_index] = call_index
        elif before is not None:
            nearest[node_index] = before
    return predecessors


def _spans(trace: Object, calls: Sequence[Object], version: int | None) -> Iterator[Span]:
    """The spans of its work. Tools run between an answer with tool calls and the next request."""
    timing = mapping(trace, "timing")
    ready = verifiers.booted(trace)
    if (begun := _at(timing, "boot", "start")) is not None:
        yield Span("boot", begun, ready if ready is not None else verifiers.ended(trace))
    yield from _phase(timing, "setup", "boot")
    yield from _agent(trace, calls[:TURNS_MAX], version)
    yield from _phase(timing, "finalize", "scoring")
    yield from _phase(timing, "scoring", "scoring")


def _phase(timing: Object, phase: str, kind: Any) -> Iterator[Span]:
    start, end = _at(timing, phase, "start"), _at(timing, phase, "end")
    if start is not None and end is not None:
        yield Span(kind, start, end, detail="" if phase == kind else phase)


def _agent(trace: Object, calls: Sequence[Object], version: int | None) -> Iterator[Span]:
    nodes, left = trace.get("nodes"), None
    end = _at(mapping(trace, "timing"), "agent", "end")
    for call in calls:
        started, answered = _at(call, "time", "start"), _at(call, "time", "end")
        if started is None or answered is None:
            continue
        if left is not None and left < started:
            yield Span("tool", left, started)
        yield Span("generate", started, answered, version)
        left = answered if _calls_tools(call, nodes) else None
    if left is not None and end is not None and left < end:
        yield Span("tool", left, end)


def _calls_tools(call: Object, nodes: Any) -> bool:
    node_index = whole(call.get("node"))
    if (
        not isinstance(nodes, list)
        or node_index is None
        or node_index >= len(nodes)
        or not isinstance(nodes[node_index], dict)
    ):
        return call.get("finish_reason") == "tool_calls"
    return _tool_calls(nodes[node_index]) > 0
