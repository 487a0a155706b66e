"""Converts a saved episode of verifiers to records: sandboxes, boot times, and rollouts lost to a sandbox.

Source: verifiers 0.4.0 (v1/trace.py, rollout.py, episode.py). Messages, tokens and tool output are not stored.

`timing.boot` is the wall time of `runtime.start()` and `prepare_setup()`. It contains the wait in verifiers' own limit
of creations, so it exceeds the provider's figure if the run throttles itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.formats import verifiers
from collectors.formats.rows import mapping, objects
from collectors.model import Labels, Sample, Sandbox
from collectors.sandbox_providers.provider import cause
from collectors.transport import rest


@dataclass(frozen=True, slots=True)
class TracedRollout:
    """The sandbox data of one episode. Times are epoch seconds.

    Attributes:
        ended_at: end of its last phase; None if not recorded.
        purpose: ``train`` or ``eval`` of a training run; "" if not recorded (a separate run).
        boxed: it ran, or should have run, in a sandbox.
        lost: it failed because of its sandbox.
        errors: types of all errors, also those of repeated attempts.
    """

    environment: str
    run: str
    purpose: str
    ended_at: float | None
    boxed: bool
    lost: bool
    errors: tuple[str, ...] = ()
    sandboxes: tuple[Sandbox, ...] = field(default=())


def rollout(episode: Mapping[str, Any]) -> TracedRollout:
    """The record of an episode. Each agent has its own sandbox; the episode is lost if one of them is."""
    traces = objects(episode.get("traces"))
    run = mapping(episode, "run")
    name = rest.text(run.get("name"), 200)
    boxed = any(verifiers.runtime_kind(trace) not in verifiers.NO_SANDBOX for trace in traces)
    lost = any(map(verifiers.lost, traces)) or (not traces and verifiers.last_error(episode) == "SandboxError")
    return TracedRollout(
        environment=verifiers.environment(episode),
        run=name,
        purpose=rest.text(mapping(run, "work").get("type"), 20),
        ended_at=max((end for trace in traces if (end := verifiers.ended(trace)) is not None), default=None),
        boxed=boxed or lost,
        lost=lost and episode.get("ok") is not True,
        errors=tuple(_errors(episode, traces)),
        sandboxes=tuple(record for trace in traces if (record := sandbox(trace, name)) is not None),
    )


def sandbox(trace: Mapping[str, Any], run: str) -> Sandbox | None:
    """The sandbox that belongs to a trace; None for a trace on the host or in a shared sandbox."""
    runtime = mapping(trace, "agent", "runtime")
    kind, trace_id = verifiers.runtime_kind(trace), rest.text(trace.get("id"), 100)
    uid = rest.text(runtime.get("id"), 200) or trace_id
    if kind in verifiers.NO_SANDBOX or not uid or runtime.get("borrowed") is True:
        return None
    lost, cached = verifiers.lost(trace), runtime.get("image_cached")
    requested, ready = rest.epoch(mapping(trace, "timing", "boot").get("start")), verifiers.booted(trace)
    message = _message(trace) if lost else ""
    return Sandbox(
        provider=kind,
        # A rejected creation has no id; the trace's id would have been the name of the sandbox.
        id=uid,
        state="failed" if lost else "terminated",
        name=trace_id,
        run_key=run,
        provider_state=rest.text(trace.get("stop_condition"), 60),
        requested_at=requested,
        ready_at=ready,
        ended_at=verifiers.ended(trace),
        image=rest.text(runtime.get("image"), 300),
        image_cached=cached if isinstance(cached, bool) else None,
        latency_source="trace" if ready is not None and requested is not None else None,
        cause=cause(message) if lost else None,
        detail=rest.clean(message),
    )


def _message(trace: Mapping[str, Any]) -> str:
    """The first line of the last error. The other lines may be output of the model's commands."""
    message = objects(trace.get("errors"))[-1].get("message")
    return message.strip().split("\n", 1)[0][:800] if isinstance(message, str) and message.strip() else ""


def _errors(episode: Mapping[str, Any], traces: list[Mapping[str, Any]]) -> Iterator[str]:
    for record in (episode, *traces):
        for error in objects(record.get("errors")):
            yield rest.text(error.get("type"), 60) or "unknown"


# ---- rollout counts
# Counts saved rollouts in event time: ended, lost to their sandbox, errors by type.

# Seconds between two samples of a series: the store's resolution.
TICK = 0.001
# Pause after which the old value is repeated; shorter than the 15 s for which a sample holds.
PAUSE_SECONDS = 5.0
# Most different names of one kind, because names come from files and each makes a series.
MAX_NAMES = 50
# Stands for further names.
OTHER = "other"
# Accepted clock difference within a cluster; a time further in the future is invalid.
AHEAD_SECONDS = 30.0

Counts = dict[str, dict[str, Any]]
"""environment -> {seen, lost, errors: {type: n}, ts: time of the last sample}; JSON-able."""


def count(counts: Counts, rollouts: Iterable[TracedRollout], now: float) -> Iterator[Sample]:
    """Adds rollouts to `counts` (changed in place) in the order of their ends. Returns samples of the counters."""
    for rollout in sorted(rollouts, key=lambda rollout: _time(rollout, now)):
        environment = _bounded(counts, rollout.environment)
        before = counts.setdefault(environment, {"seen": 0, "lost": 0, "errors": {}, "ts": None})
        yield from _add(before, environment, rollout, _time(rollout, now))


def _add(totals: dict[str, Any], environment: str, rollout: TracedRollout, ended: float) -> Iterator[Sample]:
    last = totals["ts"]
    types = [_bounded(totals["errors"], kind) for kind in rollout.errors]
    fresh = [kind for kind in types if kind not in totals["errors"]]
    totals["errors"] |= dict.fromkeys(fresh, 0)
    # A rollout that is read late is counted at the last sample's time, because a counter cannot grow in the past.
    ts = round(max(ended, last + 2 * TICK if last is not None else ended), 3)
    if last is None or ts - last > PAUSE_SECONDS or fresh:
        yield from _samples(totals, environment, types, round(ts - TICK, 3))
    totals["seen"] += 1
    totals["lost"] += rollout.lost
    for kind in types:
        totals["errors"][kind] += 1
    totals["ts"] = ts
    yield from _samples(totals, environment, types, ts)


def _samples(totals: dict[str, Any], environment: str, types: Iterable[str], ts: float) -> Iterator[Sample]:
    named: Labels = (("environment", environment),)
    yield Sample("rollouts_seen_total", float(totals["seen"]), named, ts)
    yield Sample("rollouts_infra_failed_total", float(totals["lost"]), named, ts)
    for kind in dict.fromkeys(types):
        yield Sample("rollout_attempt_errors_total", float(totals["errors"][kind]), (*named, ("type", kind)), ts)


def _time(rollout: TracedRollout, now: float) -> float:
    ended = rollout.ended_at
    return ended if ended is not None and ended <= now + AHEAD_SECONDS else now


def _bounded(names: Iterable[str], name: str) -> str:
    names = list(names)
    return name if name in names or len(names) < MAX_NAMES else OTHER
