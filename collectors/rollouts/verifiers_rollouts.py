"""Rollouts saved by verifiers and prime-rl: versions, rewards, turns, tokens, times, and the step that used them.

The run needs no change: prime-rl writes these files by default. `rollouts/step_N/train/all` gets an episode when it
ends. `effective` gets the traces of batch N when the batch is shipped, which gives the consumption: batch N trains
version N-1, and staleness is (N - 1) - `policy.start`. `eval/all` has evaluations. `configs/rl.json` has the sizes of
groups and the staleness bound. One trace is one rollout.

Not available: rollouts in flight (a line is written at the end), cancelled rollouts, the version of each token in an
episode that met an update, and why a batch left out a rollout that neither the bound nor its reward explains. The time
of its file is when a batch was shipped; for copied files it is the end of its last rollout.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from collectors.formats import jsonl, verifiers
from collectors.formats import rows as rows_format
from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, objects, whole
from collectors.model import (
    Collector,
    Consumption,
    Cursor,
    Exit,
    Limits,
    Purpose,
    Reading,
    Rollout,
    Span,
    Turn,
)
from collectors.transport import bytetail, rest

# ---- settings
# prime-rl's resolved configuration: groups, the staleness bound, and which rollouts are not shipped.

# Bytes. A resolved configuration has 30 kB.
CONFIG_BYTES = 1 << 20
# The algorithm that gives no advantage to a reward equal to the group's mean. For others this is not certain.
MEAN_BASED = "grpo"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes by environment ("" is the default).

    Attributes:
        bound: `max_off_policy_steps`: the most versions a rollout in a batch may be behind; None: unknown.
        pruned: environments ("": all others) whose rollouts without advantage are certainly left out of a batch.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    eval_sizes: Mapping[str, int] = field(default_factory=dict)
    bound: int | None = None
    pruned: Mapping[str, bool] = field(default_factory=dict)

    def group_size(self, environment: str, purpose: Purpose | None) -> int | None:
        """Episodes per group of this environment."""
        if purpose is None:
            return None
        sizes = self.eval_sizes if purpose == "eval" else self.sizes
        return sizes.get(environment, sizes.get(""))

    def prunes(self, environment: str) -> bool:
        """Returns whether a rollout with its group's mean reward is never shipped."""
        return self.pruned.get(environment, self.pruned.get("", False))


def read_settings(path: Path) -> Settings:
    """Reads ``configs/rl.json`` (else ``configs/orchestrator.json``) of a run directory; empty without them."""
    for name in ("rl", "orchestrator"):
        try:
            with (path / "configs" / f"{name}.json").open("rb") as file:
                config = jsonl.parse(file.read(CONFIG_BYTES + 1))
        except OSError:
            continue
        if config is not None:
            return _settings(mapping(config, "orchestrator") if name == "rl" else config)
    return Settings()


def _settings(config: Mapping[str, Any]) -> Settings:
    train, algorithm = mapping(config, "train"), mapping(config, "algo")
    filters = train.get("filter_zero_advantages") is True
    return Settings(
        sizes=_sizes(config, train),
        eval_sizes=_sizes(mapping(config, "eval"), mapping(config, "eval")),
        bound=whole(config.get("max_off_policy_steps")),
        pruned={"": filters and _mean_based(algorithm)}
        | {name: filters and _mean_based(source.get("algo") or algorithm) for name, source in _sources(train)},
    )


def _sizes(default: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, int]:
    """Group sizes of a section's environments, and the size for all others."""
    sizes = {"": whole(default.get("group_size"))}
    sizes |= {name: whole(source.get("group_size")) or sizes[""] for name, source in _sources(section)}
    return {name: size for name, size in sizes.items() if size}


def _sources(section: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Environments by the name in their episodes; an environment without a name counts if it is the only one."""
    sources = objects(section.get("source")) or objects(section.get("env"))
    for source in sources:
        name = rest.text(source.get("name"), 100) or rest.text(source.get("id"), 100)
        if name or len(sources) == 1:
            yield name, source


def _mean_based(algorithm: Any) -> bool:
    return mapping(algorithm).get("type") == MEAN_BASED and mapping(algorithm).get("length_penalty") is None


# ---- exits
# Infers the exit of rollouts that ended and are not shipped, because prime-rl logs it nowhere.

# Groups cached while their rollouts wait, a few batches. Beyond this the oldest are dropped.
GROUPS_MAX = 4_096
# Rewards are added up in float32 by prime-rl and in float64 here.
EQUAL = 1e-6

Memory = dict[str, Any]
"""``{"groups": {id: group}, "next": order of the next complete one}``; JSON-able. A group is ``{environment, version,
seen (episodes), order (None: open), n, total (of valid rewards), last (end of the newest), waiting: {trace: reward}}``.
"""


def arrived(memory: Memory, group_id: str, records: list[Rollout], settings: Settings) -> list[Rollout]:
    """Adds one episode of a training group; returns its records, with the group's completion if it is the last."""
    group = memory["groups"].setdefault(group_id, _empty(records))
    size = settings.group_size(group["environment"], "train")
    if size is None and settings.bound is None:
        # Their exit would never be known.
        del memory["groups"][group_id]
        return records
    group["seen"] += 1
    group["last"] = max(
        [group["last"], *(record.scored_at or record.exited_at or record.finished_at or 0.0 for record in records)]
    )
    group_records = [record for record in records if record.group_id == group_id]
    for record in group_records:
        if record.exit is None:
            group["waiting"][record.rollout_id] = record.reward
            if record.reward is not None:
                group["n"], group["total"] = group["n"] + 1, group["total"] + record.reward
    complete = group["seen"] == size
    if complete:
        group["order"], memory["next"] = memory["next"], memory["next"] + 1
    _forget_exits(memory, group_id)
    at = group["last"] if complete and group["last"] else None
    if at is None:
        return records
    return [structs.replace(record, group_complete_at=at) if record in group_records else record for record in records]


def _empty(records: list[Rollout]) -> dict[str, Any]:
    environment = next((record.environment for record in records), "")
    version = next((record.version_dispatched for record in records if record.purpose == "train"), None)
    return {
        "environment": environment, "version": version,
        "seen": 0, "order": None, "n": 0, "total": 0.0, "last": 0.0, "waiting": {},
    }  # fmt: skip


def _forget_exits(memory: Memory, newest: str) -> None:
    """Drops groups without waiting rollouts, and the oldest if there are too many."""
    groups: dict[str, dict[str, Any]] = memory["groups"]
    if groups[newest]["order"] is not None and not groups[newest]["waiting"]:
        del groups[newest]
    while len(groups) > GROUPS_MAX:
        del groups[next(iter(groups))]


def shipped(memory: Memory, trace: str, group_id: str) -> int:
    """Removes a shipped trace; returns the order of its group, -1 if the group is unknown or incomplete."""
    group = memory["groups"].get(group_id)
    if group is None:
        return -1
    group["waiting"].pop(trace, None)
    order = group["order"]
    return -1 if order is None else int(order)


def left(
    memory: Memory, step: int, newest: int, at: float | None, settings: Settings
) -> Iterator[Rollout]:  # fmt: skip
    """The rollouts that certainly left once batch ``step`` is shipped.

    Args:
        newest: order of the last group in the batch.
        at: when the batch was shipped.
    """
    groups: dict[str, dict[str, Any]] = memory["groups"]
    for name, group in list(groups.items()):
        for trace, reward in list(group["waiting"].items()):
            cause = _cause(group, reward, step, newest, settings)
            if cause is not None:
                del group["waiting"][trace]
                yield Rollout(trace, group_id=name, exit=cause, exited_at=at)
        over = group["order"] is not None or settings.bound is None or _stale(group, step + 1, settings)
        if over and not group["waiting"]:
            del groups[name]


def _cause(group: Mapping[str, Any], reward: float | None, step: int, newest: int, settings: Settings) -> Exit | None:
    if group["order"] is not None and group["order"] < newest:
        if _stale(group, step, settings):
            return "stale"
        return "zero_advantage" if _of_no_use(group, reward, settings) else "surplus"
    return "stale" if _stale(group, step + 1, settings) else None


def _stale(group: Mapping[str, Any], step: int, settings: Settings) -> bool:
    """Returns whether the whole group is too old for batch ``step``."""
    version: int | None = group["version"]
    return version is not None and settings.bound is not None and version < step - 1 - settings.bound


def _of_no_use(group: Mapping[str, Any], reward: float | None, settings: Settings) -> bool:
    if reward is None or not group["n"] or not settings.prunes(group["environment"]):
        return False
    mean = float(group["total"] / group["n"])
    return abs(reward - mean) <= EQUAL * max(1.0, abs(reward))


# ---- rows
# Turns one saved episode of verifiers into rollouts: one per trace, as rewards, advantages and batches are per trace.

# Turns stored per rollout; the count of turns is exact.
TURNS_MAX = 2_000
# Errors of the machines between policy and task; other errors are of the task's own code, its tools or harness.
INFRASTRUCTURE = frozenset(
    ("SandboxError", "ProviderError", "InterceptionError", "TunnelError", "TimeoutError", "ConnectionError", "OSError")
)
TRUNCATED = frozenset(("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"))

Object = Mapping[str, Any]


def rollouts_of_rows(episode: Object, settings: Settings, arrived: float | None) -> list[Rollout]:
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
    counts = [rows_format.true_count(node.get("mask")) for node in objects(trace.get("nodes"))]
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


# A batch is written at once, which may take a while; its time is that of the last block.
QUIET_SECONDS = 5.0
# A batch waits for the trainer's next version, at most one long step: a file that is later by this was copied.
COPIED_SECONDS = 6 * 3600.0


@dataclass(slots=True)
class _ReadResult:
    """The result of one call. ``memory``: the next cursor; ``limits``: what the call may still read."""

    root: Path
    memory: dict[str, Any]
    limits: Limits
    settings: Settings
    rollouts: list[Rollout] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    more: bool = False
    dropped: int = 0
    why: str = ""
    rows: int = 0

    def drop(self, why: str) -> None:
        self.dropped, self.why = self.dropped + 1, self.why or why


@bytetail.readable("the traces")
def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Rollouts of the episodes and batches appended since ``cursor``, step by step.

    The cursor holds a position per file of the newest steps, and the rollouts that wait to be shipped.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    single_file = verifiers.single_file(path)
    steps = verifiers.steps(path)
    if single_file is None and not steps:
        verifiers.refuse(path)
    limits = replace(limits, line_bytes=verifiers.LINE_BYTES)
    result = _ReadResult(path, _memory(cursor, steps), limits, read_settings(path))
    if "copied" not in result.memory and len(steps) >= rows_format.STEPS_LEAST:
        result.memory["copied"] = max(0.0, rows_format.copied_until(_batch_times(path, steps)))
    if single_file is not None:
        _read_file(single_file, 0, result)
    _read_steps(steps, now, result)
    return Reading(
        rollouts=tuple(result.rollouts),
        unmapped=result.unmapped,
        cursor=result.memory,
        more=result.more,
        dropped=result.dropped,
        why_dropped=result.why,
        samples_scraped=result.rows,
        gaps=(f"{rows_format.NOTE}; a batch is dated by its last rollout",) if _is_copied(path, steps, result) else (),
        reader=f"{verifiers.STEPS}/step_*/*/{verifiers.FILE}" if steps else verifiers.FILE,
    )


def _batch_times(path: Path, steps: list[int]) -> Iterator[float]:
    """When the file of each step's batch was written."""
    for step in steps:
        with suppress(OSError):
            yield verifiers.file_of(path, step, "train", "effective").stat().st_mtime


def _is_copied(path: Path, steps: list[int], result: _ReadResult) -> bool:
    """Returns whether the newest batch was copied; a run that continues after a copy has times of its own."""
    times = list(_batch_times(path, steps[-verifiers.OPEN_STEPS :]))
    return bool(times) and max(times) <= result.memory.get("copied", 0.0)


def _memory(cursor: Cursor, steps: list[int]) -> dict[str, Any]:
    """The state so far. A resumed run removes the steps that it repeats, and with them all waiting rollouts."""
    previous = {"floor": 0, "last": 0, "judged": 0, "ends": {}, "newest": 0.0, "shipped": {}, **cursor}
    waiting = cursor.get("waiting", {"groups": {}, "next": 0})
    groups = {name: {**group, "waiting": dict(group["waiting"])} for name, group in waiting["groups"].items()}
    last = max(steps, default=0)
    memory = previous | {
        "floor": min(previous["floor"], last),
        "judged": min(previous["judged"], last),
        "files": dict(cursor.get("files", {})),
        "ends": dict(previous["ends"]),
        "shipped": dict(previous["shipped"]),
        "waiting": {"groups": {} if last < previous["last"] else groups, "next": waiting["next"]},
    }
    return memory | {"last": last}


def _read_steps(steps: list[int], now: float, result: _ReadResult) -> None:
    """Reads step after step up to the limits of the call; finished steps are dropped from the state."""
    memory = result.memory
    newest = steps[-verifiers.OPEN_STEPS :]
    open_steps = [step for step in steps if step >= memory["floor"]]
    for step in open_steps:
        if not _read_step(step, now, result):
            break
        if step not in newest:
            memory["floor"] = step + 1
    open_names = {str(step) for step in open_steps if step >= memory["floor"]}
    for name in ("ends", "shipped"):
        memory[name] = {step: value for step, value in memory[name].items() if step in open_names}
    memory["files"] = {
        name: file_cursor
        for name, file_cursor in memory["files"].items()
        if _step_of(name) in open_names or "/" not in name
    }


def _step_of(name: str) -> str:
    """The step in a file's path below the run."""
    return name.split("/")[1].removeprefix("step_") if name.count("/") > 1 else ""


def _read_step(step: int, now: float, result: _ReadResult) -> bool:
    """Reads the new part of a step in the order it was written; returns whether that was all of it so far."""
    done = _read_file(verifiers.file_of(result.root, step, "train"), step, result)
    done = done and _read_batch(verifiers.file_of(result.root, step, "train", "effective"), step, now, result)
    return _read_file(verifiers.file_of(result.root, step, "eval"), step, result) and done


def _read_file(file: Path, step: int, result: _ReadResult) -> bool:
    for row in _rows(file, result):
        _episode(row, step, result)
    return not result.more


def _episode(row: Any, step: int, result: _ReadResult) -> None:
    memory = result.memory
    # Lines are in order of time: an episode without a time ended at the newest end before it.
    records = rollouts_of_rows(row, result.settings, memory["newest"] or None)
    end = max((rollout.scored_at or rollout.finished_at or 0.0 for rollout in records), default=0.0)
    memory["newest"] = max(memory["newest"], end)
    if any(rollout.purpose == "train" for rollout in records):
        memory["ends"][str(step)] = max(memory["ends"].get(str(step), 0.0), end)
    group = group_of(row)
    if group and purpose(row) == "train":
        records = arrived(memory["waiting"], group, records, result.settings)
    result.rollouts += records
    for version_name in verifiers.unknown_versions(row):
        result.unmapped[version_name] = result.unmapped.get(version_name, 0) + 1


def _read_batch(file: Path, step: int, now: float, result: _ReadResult) -> bool:
    """Reads the batch shipped at this step when it is complete, and when the step is over, what was left out."""
    over = step < result.memory["last"]
    if file.is_file():
        at = file.stat().st_mtime
        if not over and now - at < QUIET_SECONDS:
            return True
        at = _shipped_at(at, step, result)
        newest = result.memory["shipped"].get(str(step), -1)
        for row in _rows(file, result):
            newest = max(newest, _ship(row, step, at, result))
        result.memory["shipped"][str(step)], result.memory["dated"] = newest, at
    newest = result.memory["shipped"].get(str(step))
    if over and not result.more and newest is not None and step > result.memory["judged"]:
        result.rollouts += left(result.memory["waiting"], step, newest, result.memory.get("dated"), result.settings)
        result.memory["judged"] = step
    return not result.more


def _shipped_at(modified: float, step: int, result: _ReadResult) -> float:
    last = result.memory["ends"].get(str(step), 0.0)
    copied = modified <= result.memory.get("copied", 0.0) or not -QUIET_SECONDS <= modified - last < COPIED_SECONDS
    return last if last and copied else modified


def _ship(row: Any, step: int, at: float, result: _ReadResult) -> int:
    """Ships one episode of batch ``step``, which trains the version before it; returns the order of its group."""
    group, orders = group_of(row), [-1]
    for trace in objects(row.get("traces")):
        if not (identity := trace_id(trace)):
            continue
        orders.append(shipped(result.memory["waiting"], identity, group))
        used = Consumption(step - 1, at) if step > 0 else Consumption(None, at)
        advantage = number(mapping(trace, "info").get("advantage"))
        result.rollouts.append(
            Rollout(identity, group_id=group, purpose="train", advantage=advantage, consumptions=(used,))
        )
    return max(orders)


def _rows(file: Path, result: _ReadResult) -> Iterator[Any]:
    """Episodes appended to a file; other rows are dropped and counted."""
    result.more = result.more or result.limits.tail_rows <= 0 or result.limits.tail_bytes <= 0
    if result.more or not file.is_file():
        return
    name = verifiers.name(file, result.root)
    read = bytetail.read(file, result.memory["files"].get(name, {}), result.limits)
    result.memory["files"][name] = read.cursor
    if read.restarted:
        _forget(file, result)
    result.limits = verifiers.left(result.limits, read)
    result.more, result.rows = result.more or read.more, result.rows + len(read.lines)
    result.dropped, result.why = result.dropped + read.dropped, result.why or read.why
    for offset, line in read.lines:
        row = jsonl.parse(rows_format.cut(line, counted=True))
        if row is not None and verifiers.is_episode(row):
            yield row
        else:
            result.drop(f"the line at byte {offset} of {file.name} is not an episode of verifiers")


def _forget(file: Path, result: _ReadResult) -> None:
    """A file was rewritten, as by a run that rewinds: its step is read again, and its waiting rollouts are dropped."""
    memory, step = result.memory, _step_of(verifiers.name(file, result.root))
    if file.parent.parent.name != "train":
        return
    memory["waiting"]["groups"].clear()
    for name in ("ends", "shipped"):
        memory[name].pop(step, None)
    if step and file.parent.name == "all":
        memory["files"].pop(
            verifiers.name(verifiers.file_of(result.root, int(step), "train", "effective"), result.root), None
        )


RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "environment",
    "version_dispatched",
    "version_start",
    "version_finish",
    "started_at",
    "finished_at",
    "turns",
    "tool_calls",
    "turn versions",
    "consumptions",
    "exit",
    "failures",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="verifiers_rollouts",
    actor="generator",
    reads="rollouts saved by prime-rl and verifiers (traces.jsonl): versions, rewards, turns, times, the step they fed",
    versions="prime-rl 559b4477 (2026-08) and verifiers 0.4.0 by source and recorded files",
    tail=tail,
    matches_path=verifiers.matches_path,
    looks_for=(verifiers.LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
