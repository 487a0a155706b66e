"""Rollouts: totals, exits, phases, lengths, tails."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator

from server.rollouts.groups import quantile
from server.rollouts.model import CENSUS, EXITS, WAITS
from server.rollouts.window import NO_RECORDS, Window
from server.signals.aggregates import average, last_sum, mean, single, stats, too_few, window
from server.signals.engine_state import current
from server.signals.model import STEP_MINIMUM, TICK_WINDOW_SECONDS, Answer, Counter, Unknown, Value, View, signal
from server.signals.recorded import distribution, either, recorded
from server.signals.sandbox_window import PENDING
from server.signals.window import Gauge

NO_EXITS = "no record reports how a rollout left: log `consumed_at` or `exit`"


def no_exits(found: Window) -> Unknown:
    """Reason why there is no share of exits."""
    return Unknown(
        "records cover only a sample of the rollouts, so exits are not counted" if found.sampled else NO_EXITS
    )


@signal(title="Exits", unit="ratio", actor="queue", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def rollout_exit_ratio(_: View, found: Window) -> Answer:
    """Share of each exit among the rollouts that left since the last 10 consumed versions began, without rollouts in
    flight. Needs rollout records.
    """
    total = sum(found.exits.values())
    if not total:
        return no_exits(found)
    return [Value(found.exits[name] / total, (("exit", name),)) for name in EXITS]


PHASES = {
    "setup": "rollout_setup_seconds_mean",
    "model": "rollout_model_seconds_mean",
    "tools": "rollout_harness_seconds_mean",
    "scoring": "rollout_scoring_seconds_mean",
    "all": "rollout_seconds_mean",
}


@signal(
    title="Where each rollout goes",
    unit="seconds",
    actor="generator",
    inputs=(*PHASES.values(), "tool_call_seconds_mean", "tool_calls_mean"),
    cadence="step",
    hint="no rollout times by phase: the trainer must log them (prime-rl `timing/agent/model/mean`, TRL async "
    "`env/reset_s` and `tools/latency_s`, verl `timing_s/agent_loop/...`)",
)
def rollout_phase_seconds(view: View) -> Answer:
    """Mean seconds per rollout by phase: setup (environment, sandbox), model, tools, scoring, and all (start to end),
    from the trainer's log, last 10 steps.
    """
    found = {}
    for phase, metric in PHASES.items():
        rows = window(view, metric)
        if len(rows) >= STEP_MINIMUM:
            found[phase] = mean(rows, metric)
    tools = _by_call(view)
    if "tools" not in found and tools is not None:
        found["tools"] = tools
    return [Value(seconds, (("phase", phase),)) for phase, seconds in found.items()] or Unknown(
        rollout_phase_seconds.hint
    )


def _by_call(view: View) -> float | None:
    """Seconds in tools: duration of a call times the number of calls."""
    rows = window(view, "tool_call_seconds_mean", "tool_calls_mean")
    if len(rows) < STEP_MINIMUM:
        return None
    return mean(rows, "tool_call_seconds_mean") * mean(rows, "tool_calls_mean")


@signal(
    title="In flight",
    unit="rollouts",
    actor="generator",
    inputs=("in_flight_rollouts",),
    cadence="tick",
    hint="this run reports no rollouts in flight "
    "(prime-rl prints them in the orchestrator log, TRL async logs `rollout/inflight`)",
    records=True,
)
def in_flight_rollouts(view: View) -> Answer:
    """Rollouts in flight by state: waiting_slot, booting, generating, in_tool, scoring, waiting_group, queued, gated,
    from records that are written during a rollout; otherwise the newest report of incomplete rollouts.
    """
    # Records that are written at the end of a rollout do not contain those in flight.
    if view.rollouts.watched:
        return [Value(float(count), (("state", state),)) for state, count in _census(view).items()]
    return _counted(view)


def _census(view: View) -> dict[str, int]:
    found = Tally(_states(view))
    return {state: found[state] for state in CENSUS}


def _states(view: View) -> Iterator[str]:
    """Numbers by state. A rollout that generates in a sandbox that is not ready yet is booting."""
    pending = {record.id for record in view.sandboxes.own.values() if record.state in PENDING}
    for one in view.rollouts.in_flight(view.now):
        boots = one.state in ("waiting_slot", "generating") and not pending.isdisjoint(one.sandboxes)
        yield "booting" if boots else one.state


def _counted(view: View) -> Answer:
    states: dict[str, float] = defaultdict(float)
    for gauge in view.fresh("in_flight_rollouts"):
        states[dict(gauge.labels).get("state", "generating")] += gauge.last
    return [Value(count, (("state", state),)) for state, count in sorted(states.items())] or Unknown(
        in_flight_rollouts.hint
    )


@signal(
    title="Rollouts in flight",
    unit="rollouts",
    actor="generator",
    inputs=in_flight_rollouts.inputs,
    cadence="tick",
    hint=in_flight_rollouts.hint,
    records=True,
)
def rollouts_in_flight(view: View) -> Answer:
    """Rollouts dispatched and not yet ended: all states of in_flight_rollouts except waiting_group and queued, in which
    a rollout has ended and waits for siblings or for the trainer.
    """
    counted = in_flight_rollouts.compute(view)
    if not isinstance(counted, list):
        return counted
    return [Value(sum(one.value for one in counted if dict(one.labels).get("state") not in WAITS))]


# A rollout that has ended and only waits does not use a slot any more.
_OVER = ("waiting_group", "queued", "scoring")


@signal(
    title="In flight, of the cap",
    unit="ratio",
    actor="generator",
    inputs=("in_flight_rollouts", "in_flight_capacity_rollouts"),
    cadence="tick",
    hint="needs the rollouts in flight and the cap on them (prime-rl `concurrency/max_inflight`, TRL async "
    "`max_inflight_tasks`, or the fact max_in_flight)",
    records=True,
)
def in_flight_ratio(view: View) -> Answer:
    """Rollouts in flight now / their maximum, without rollouts that only wait for a reward, their group or the trainer.

    At the cap, the configuration limits production.
    """
    caps = view.fresh("in_flight_capacity_rollouts")
    cap = last_sum(caps) if caps else view.fact("max_in_flight")
    counted = in_flight_rollouts.compute(view)
    if not cap or not isinstance(counted, list):
        return Unknown(in_flight_ratio.hint)
    return [Value(sum(value.value for value in counted if dict(value.labels).get("state") not in _OVER) / cap)]


_PARTS = (("rollouts", "rollout_error_ratio"), ("tool_calls", "tool_failure_ratio"))


@signal(
    title="Failures",
    unit="ratio",
    actor="sandbox",
    inputs=("rollout_error_ratio", "tool_failure_ratio"),
    cadence="step",
    hint="this trainer reports neither failed tool calls nor failed rollouts",
    watch=0.05,
    critical=0.20,
)
def failure_ratio(view: View) -> Answer:
    """Share of tool calls, and of rollouts, that ended in an error, mean over the last 10 steps.

    Failures turn broken infrastructure into rewards of zero that look genuine.
    """
    windows = {of: (metric, window(view, metric)) for of, metric in _PARTS}
    measured = [Value(mean(rows, m), (("of", of),)) for of, (m, rows) in windows.items() if len(rows) >= STEP_MINIMUM]
    longest = max((rows for _, rows in windows.values()), key=len)
    return measured or too_few(longest, failure_ratio.hint) or []


_UNTOLD = (
    "no record reports how a rollout failed: log `exit` (infra_error, env_error) of those that failed, or push "
    "records while rollouts are in flight"
)


@signal(
    title="Infra failures",
    unit="ratio",
    actor="sandbox",
    cadence="step",
    hint=NO_RECORDS,
    # 2 % spoils every third group of 16; at 10 % four of five.
    watch=0.02,
    critical=0.10,
    records=True,
)
@recorded
def infra_failure_ratio(_: View, found: Window) -> Answer:
    """Share of finished rollouts lost to infrastructure failures (exit infra_error) since the last 10 consumed versions
    began. Their zero rewards are excluded everywhere. Needs rollout records.

    Next to a zero-advantage share it shows that the policy is not the cause.
    """
    total = sum(found.exits.values())
    if not total:
        return no_exits(found)
    # A source that reports only trained rollouts does not report failed ones, so their number is unknown and not zero.
    return [Value(found.exits["infra_error"] / total)] if found.failures_told else Unknown(_UNTOLD)


def _turns_logged(view: View) -> Answer:
    return stats(view, turns.hint, ("mean", "turns_mean", average))


@signal(
    title="Turns",
    unit="turns",
    actor="generator",
    inputs=("turns_mean",),
    cadence="step",
    hint="this trainer reports no turns per rollout (prime-rl `train/agg/effective/num_turns/mean`)",
    records=True,
)
@either(_turns_logged, log_first=True)
def turns(_: View, found: Window) -> Answer:
    """Turns per trained rollout: mean of the last 10 steps in the trainer's log. What the log lacks comes from records
    of the last 10 consumed versions.
    """
    return distribution(found, "turns", "mean", "p50", "p90", "max")


def _tool_calls_logged(view: View) -> Answer:
    return stats(view, tool_calls.hint, ("mean", "tool_calls_mean", average))


@signal(
    title="Tool calls",
    unit="calls",
    actor="sandbox",
    inputs=("tool_calls_mean",),
    cadence="step",
    hint="this trainer reports no tool calls per rollout (TRL `tools/call_frequency`)",
    records=True,
)
@either(_tool_calls_logged, log_first=True)
def tool_calls(_: View, found: Window) -> Answer:
    """Tool calls per trained rollout: mean of the last 10 steps in the trainer's log. What the log lacks comes from
    records of the last 10 consumed versions.
    """
    return distribution(found, "tool_calls", "mean", "p50", "p90", "max")


def _response_tokens_logged(view: View) -> Answer:
    answer = stats(
        view,
        response_tokens.hint,
        ("mean", "response_tokens_mean", average),
        ("p90", "response_tokens_p90", average),
        ("max", "response_tokens_max", max),
    )
    if not isinstance(answer, list):
        return answer
    rows = window(view, "response_tokens_mean")
    samples = [row.get("trainer_samples") or 0.0 for row in rows]
    if 0.0 in samples:  # not logged with every step: all steps count alike
        return answer
    tokens = sum(row.values[("response_tokens_mean", ())] * count for row, count in zip(rows, samples, strict=True))
    return [Value(tokens / sum(samples), answer[0].labels), *answer[1:]]


@signal(
    title="Response length",
    unit="tokens",
    actor="generator",
    inputs=("response_tokens_mean", "response_tokens_p90", "response_tokens_max", "trainer_samples"),
    cadence="step",
    hint="this trainer reports no response length: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`)",
    records=True,
)
@either(_response_tokens_logged, log_first=True)
def response_tokens(_: View, found: Window) -> Answer:
    """Response tokens per trained rollout. From the trainer's log: mean of the last 10 steps' means, weighted by
    samples; mean of their p90s; maximum of their maxima. What the log lacks comes from records of the last 10 consumed
    versions.

    From rollout records quantiles are exact. Quantiles of a log's steps cannot be merged exactly.
    """
    return distribution(found, "response_tokens", "mean", "p50", "p90", "p99", "max")


@signal(
    title="Truncated",
    unit="ratio",
    actor="generator",
    inputs=("truncation_ratio",),
    cadence="step",
    hint="this trainer reports no truncation share (TRL `completions/clipped_ratio`, prime-rl `.../is_truncated/mean`)",
    # With a tenth of the rollouts cut the reward is biased; at 30 % the cap decides what is learned.
    watch=0.10,
    critical=0.30,
)
def truncation_ratio(view: View) -> Answer:
    """Share of rollouts truncated at the length cap, mean over the last 10 steps.

    A cap hides length drift: read it beside the response length.
    """
    return single(view, "truncation_ratio", truncation_ratio.hint)


# Seconds. The polling interval of engines; a shorter tail costs nothing.
GRID_SECONDS = 5.0
_INSTANTS = round(TICK_WINDOW_SECONDS / GRID_SECONDS)
# Instants. Fewer with work are too short a generation phase to judge.
_LEAST = 6


@signal(
    title="Tail bubble",
    unit="ratio",
    actor="generator",
    inputs=("generator_requests_running", "trainer_step_seconds"),
    cadence="step",
    hint="no engine reports running requests: add its /metrics as a target",
)
def tail_bubble_ratio(view: View) -> Answer:
    """1 - mean running requests / their peak, over the time with running requests, in the 5 minutes before the newest
    step's end: engines that empty while the slowest rollouts finish.
    """
    gauges = current(view, "generator_requests_running")
    if not gauges:
        return Unknown(tail_bubble_ratio.hint)
    running = [one for one in _running(view.now, gauges) if one > 0]
    if len(running) < _LEAST:
        return Unknown("the engines generated for less than half a minute of the last five")
    return [Value(1.0 - sum(running) / len(running) / max(running))]


def _running(now: float, gauges: list[Gauge]) -> list[float]:
    """Requests running in all engines at each instant of the window's grid."""
    totals = [0.0] * _INSTANTS
    start = now - TICK_WINDOW_SECONDS
    for gauge in gauges:
        points = list(gauge.points)
        place = 0
        for number in range(_INSTANTS):
            at = start + (number + 1) * GRID_SECONDS
            while place + 1 < len(points) and points[place + 1][0] <= at:
                place += 1
            ts, value = points[place]
            totals[number] += value if ts <= at <= ts + gauge.carry else 0.0
    return totals


# Rollouts. With fewer the 99th percentile is random.
LEAST = 20
OF = ("response_tokens", "seconds")


@signal(title="Tail index", unit="ratio", actor="generator", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def tail_index_ratio(_: View, found: Window) -> Answer:
    """p99 / p50 of response tokens and of seconds from dispatch to end, of completed rollouts (trained or not) since
    the last 10 consumed versions began. Needs rollout records.
    """
    measured = [(name, found.ended_values(name)) for name in OF]
    sufficient = [(name, values) for name, values in measured if len(values) >= LEAST and quantile(values, 0.5) > 0]
    if not sufficient:
        return Unknown(
            f"fewer than {LEAST} ended rollouts report their length: log `response_tokens`, `dispatched_at` "
            "and `finished_at`"
        )
    return [Value(quantile(values, 0.99) / quantile(values, 0.5), (("of", name),)) for name, values in sufficient]


@signal(
    title="Scorer busy",
    unit="ratio",
    actor="sandbox",
    inputs=("reward_seconds", "trainer_step_seconds", "trainer_samples", "trainer_groups"),
    cadence="step",
    hint="this trainer reports no scoring time (TRL async `rollout/score_s`, verl `timing_s/reward`)",
)
def scoring_busy_ratio(view: View) -> Answer:
    """Seconds of scoring per second of a scorer that takes one group at a time (asynchronous runs), or the share of the
    step (synchronous runs); last 10 steps. Several scorers together may exceed 1.

    Seconds of scoring per group x groups per step / step. At 1 it sets the pace.
    """
    rows = window(view, "reward_seconds", "trainer_step_seconds")
    missing = too_few(rows, scoring_busy_ratio.hint)
    if missing is not None:
        return missing
    seconds, step = mean(rows, "reward_seconds"), mean(rows, "trainer_step_seconds")
    times = 1.0 if view.synchronous else _groups(view)
    if times is None or step <= 0:
        return Unknown(
            "scoring runs in parallel with the step, one group at a time: needs the groups or samples per step"
        )
    return [Value(seconds * times / step)]


def _groups(view: View) -> float | None:
    """Groups that were scored per step: those trained on, and those dropped after it."""
    rows, size = window(view, "trainer_groups"), view.fact("group_size")
    samples, dropped = window(view, "trainer_samples"), window(view, "stale_dropped_rollouts")
    lost = mean(dropped, "stale_dropped_rollouts") / size if dropped and size else 0.0
    if samples and size:
        return mean(samples, "trainer_samples") / size + lost
    return mean(rows, "trainer_groups") + lost if rows else None


COUNTERS = (
    Counter(
        name="rollouts_total",
        title="Rollouts",
        unit="rollouts",
        actor="queue",
        help="Training rollouts that left, each counted once, by exit (the first cause). Needs records of all "
        "rollouts.",
        metric="rollout_left",
        of="rollout",
        by=("exit",),
    ),
)
"""Counters of this topic, which are counted as records arrive."""
