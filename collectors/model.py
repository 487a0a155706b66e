"""The types that collectors return: samples, histograms, events and facts, in canonical names and base units.

All types are read-only and need no part of the server, so that a collector can run without it (later: as an agent on
the trainer's machine). Nothing here reads a clock or opens a file.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from msgspec import Meta, Struct

Labels = tuple[tuple[str, str], ...]
"""Label pairs sorted by name, without run, actor, instance and target, which the scraper adds."""

Actor = Literal["trainer", "generator", "sandbox"]
Mode = Literal["sync_colocated", "sync_split", "one_step", "async", "async_colocated"]
Basis = Literal["native", "derived"]
Lifecycle = Literal["starting", "running", "paused", "finished", "crashed"]

Cursor = Mapping[str, Any]
"""The position of a tail, JSON-able, opaque except for its collector. ``{}`` is the beginning."""

State = MutableMapping[str, Any]
"""A collector's cache per target between calls. It may be dropped at any time."""

ErrorKind = Literal[
    "unreachable",  # no connection, name not resolved, connection reset
    "timeout",  # connected, but no complete answer in time
    "status",  # an HTTP status that is not 200
    "no_metrics",  # the engine answers its health check, but its metrics page fails
    "auth",  # 401 or 403
    "too_large",  # a limit of `Limits` was passed: nothing beyond it was read
    "empty",  # the body or file holds nothing
    "garbage",  # bytes that are not the format
    "locked",  # a database another process holds
    "refused",  # read, but rejected by the store; or an address that must not be requested
    "missing",  # the file or directory does not exist or cannot be read
    "not_a_run",  # a directory that no collector recognises
    "silent",  # a heartbeat that did not come in time
    "throttled",  # 429: too many requests, by us or by the run; itself a finding
    "credit",  # 402, or a refusal because the account has no money left
    "quota",  # a refusal because a limit of the account is used up
]

SandboxState = Literal[
    "queued", "building_image", "starting", "running", "paused", "stopping", "terminated", "failed", "unknown"
]
"""Canonical: ``starting`` differs from ``running``, because many providers limit how many may start at once."""

LatencySource = Literal["server", "client", "log", "trace", "poll_bound"]
"""The clock that measured a spin-up: the provider's, the caller's, a log line's, a trace's, or ours between two polls
(an upper bound)."""

FailureCause = Literal[
    "rate_limit", "quota", "credit", "capacity", "image", "oom", "timeout", "auth", "internal", "unknown"
]


# ---- bounds
# What fields of records may hold. `server.push` checks them, and refuses a field with its description; records that a
# collector makes are checked when they are ingested.

FIRST_TIME = 946_684_800.0
"""Earliest plausible time, epoch seconds (2000-01-01)."""
MOST_TOKENS, MOST_CALLS = 10**9, 10**7
"""Largest plausible counts of a rollout. The database sums many of them in 64 bits."""

Whole = Annotated[int, Meta(ge=0, le=2**53, description="a whole number from 0 on")]
Size = Annotated[int, Meta(ge=1, le=2**53, description="a whole number from 1 on")]
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS, description=f"a whole number from 0 to {MOST_TOKENS}")]
Calls = Annotated[int, Meta(ge=0, le=MOST_CALLS, description=f"a whole number from 0 to {MOST_CALLS}")]
# A larger number is a time or a hash, and every later incarnation would look older.
Incarnation = Annotated[int, Meta(ge=0, le=2**31 - 1, description=f"a whole number from 0 to {2**31 - 1}")]
Number = Annotated[float, Meta(ge=-1e300, le=1e300, description="a finite number")]
Time = Annotated[
    float, Meta(ge=FIRST_TIME, le=1e11, description="epoch seconds, from 2000 on and less than a day ahead")
]
Moment = Annotated[float, Meta(ge=0, le=1e11, description="a number of epoch seconds")]
# A long identifier is refused, because two could be cut to the same text.
Id = Annotated[str, Meta(max_length=200, description="a text of at most 200 characters")]
Name = Annotated[str, Meta(min_length=1, max_length=200, description="a text of 1 to 200 characters")]


class Sample(Struct, frozen=True, gc=False):
    """One number. ``metric`` is a row of :mod:`collectors.catalog`; the value is in that row's unit.

    Attributes:
        ts: epoch seconds of the event; None means "now", the time of the scrape.
        step: the step it belongs to, for per-step metrics; None for gauges and counters of the moment.
        axis: the counter of ``step`` (``trainer``, ``orchestrator``): the two are different numbers.
    """

    metric: str
    value: float
    labels: Labels = ()
    ts: float | None = None
    step: int | None = None
    axis: str = ""


class Histogram(Struct, frozen=True, gc=False):
    """One histogram with its own edges, as read: cumulative counts, since the process began.

    Attributes:
        edges: finite upper bounds, ascending. Never assumed, because users may configure them.
        counts: cumulative counts, one per edge plus one for +Inf (``len(edges) + 1``).
        total: sum of the observations.
    """

    metric: str
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    labels: Labels = ()
    ts: float | None = None


class Event(Struct, frozen=True, gc=False):
    """Something that happened once. ``key`` makes it idempotent within a run.

    ``version``: the published policy version, of ``weights_published``, if reported as a number.
    """

    kind: Literal[
        "weights_published",
        "restart",
        "resume",
        "fault",
        "checkpoint",
        "eval",
        "config_change",
        "lifecycle",
        "hardware",
        "drift",
        "source",
    ]
    key: str
    ts: Time | None = None
    detail: str = ""
    version: Whole | None = None


class Sandbox(Struct, frozen=True, gc=False):
    """One sandbox as its provider (or its creator) describes it now. Times are epoch seconds; None: unknown.

    Attributes:
        id: the provider's; with `provider` it is the identity.
        run_key: the run that it names (label, tag, metadata, or the name's prefix); "" if it names none.
        provider_state: the provider's own term.
        requested_at, started_at, ready_at, ended_at: requested; scheduled or booted; usable; over.
        first_exec_at: first command in it, epoch seconds.
        image_cached: False if its image had to be built or pulled first; None: unknown.
        latency_source: the clock of ready - requested; None without such a difference.
        cause: why it failed; set exactly when `state` is ``failed``.
        detail: the provider's message, at most 200 characters, without secrets.
        unreachable: the provider reports it as running, but it does not answer.
        expires_at: when the provider ends it by itself.
        cost_usd_per_hour: its price, if reported.
    """

    provider: Name
    id: Name
    state: SandboxState
    name: str = ""
    run_key: str = ""
    provider_state: str = ""
    requested_at: Moment | None = None
    started_at: Moment | None = None
    ready_at: Moment | None = None
    first_exec_at: Moment | None = None
    ended_at: Moment | None = None
    image: str = ""
    image_cached: bool | None = None
    latency_source: LatencySource | None = None
    cause: FailureCause | None = None
    detail: str = ""
    unreachable: bool = False
    expires_at: Moment | None = None
    cost_usd_per_hour: Annotated[float, Meta(ge=0, le=1e11, description="a number of dollars")] | None = None


Purpose = Literal["train", "eval", "judge"]
Exit = Literal[
    "trained", "aborted_oversample", "truncated_drop", "env_error", "infra_error", "surplus", "stale", "zero_advantage"
]
"""Why a rollout is no longer in flight; the first cause counts. A suspended one is still in flight."""

SpanKind = Literal[
    "queued", "boot", "generate", "prefill", "decode", "tool", "scoring", "waiting_group", "in_queue", "suspended"
]
"""What a rollout did for some time: a bar of its timeline."""


class Turn(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn of a rollout, as far as its environment's state and the policy are concerned.

    Attributes:
        version: policy version that acted; None: unknown.
        tool_calls: its tool calls; None: unknown.
        mutated: did it change its environment? None: unknown, so every successful call counts (an upper bound).
        reset: the environment was created again before it.
        sandbox_id: the environment's identity; "" is the rollout's only one.
        forked_from: the sandbox whose state was copied into this one.
    """

    version: Whole | None = None
    tool_calls: Calls | None = None
    mutated: bool | None = None
    reset: bool = False
    sandbox_id: Id = ""
    forked_from: Id = ""


class Span(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A part of a rollout's time, epoch seconds; ``end`` None: it continues. ``version``: the policy's, if reported."""

    kind: SpanKind
    start: Time
    end: Time | None = None
    version: Whole | None = None
    detail: str = ""


class Consumption(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One use by the trainer: ``version`` is the policy's just before the first update that uses the rollout."""

    version: Whole | None = None
    at: Time | None = None
    incarnation: Incarnation | None = None


class Rollout(Struct, frozen=True, gc=False):
    """The record of one rollout. It may be partial: later records add to it, in any order. Epoch seconds.

    Texts and token ids are never stored. None, "" and () mean "unknown".

    Attributes:
        rollout_id: its identity within the run.
        group_size: rollouts that its group has when complete.
        incarnation: incarnation of the trainer in which it was made.
        version_dispatched, version_start, version_finish: policy version when its group was dispatched, when it
            began to generate, and when it ended.
        token_versions: (policy version, loss tokens it produced) of the final rollout, oldest first.
        consumptions: every use by the trainer; replayed rollouts have several.
        turn_count: turns, if `turns` does not list them.
        solved: the task's own result.
        error: type of the error that ended it, as the framework names it, at most 200 characters.
        exited_at: when it left, if different from its end: a rollout dropped as stale waited before.
        engine: the engine that generated it.
        sampled: its source reports only some rollouts: nothing may be counted from it.
        spans: its timeline.
    """

    rollout_id: Name
    group_id: Id = ""
    group_size: Size | None = None
    attempt: Whole | None = None
    incarnation: Incarnation | None = None
    purpose: Purpose | None = None
    environment: str = ""
    agent: str = ""
    difficulty: str = ""
    engine: str = ""
    version_dispatched: Whole | None = None
    version_start: Whole | None = None
    version_finish: Whole | None = None
    token_versions: Annotated[
        tuple[tuple[Whole, Tokens], ...],
        Meta(
            max_length=10_000, description=f"a list of at most 10000 [version, loss tokens], up to {MOST_TOKENS} each"
        ),
    ] = ()
    consumptions: Annotated[
        tuple[Consumption, ...], Meta(max_length=1_000, description="a list of at most 1000 {version, at, incarnation}")
    ] = ()
    dispatched_at: Time | None = None
    started_at: Time | None = None
    first_token_at: Time | None = None
    finished_at: Time | None = None
    scored_at: Time | None = None
    group_complete_at: Time | None = None
    exited_at: Time | None = None
    prompt_tokens: Tokens | None = None
    response_tokens: Tokens | None = None
    loss_tokens: Tokens | None = None
    turns: Annotated[
        tuple[Turn, ...], Meta(max_length=10_000, description="a list of at most 10000 objects, or a count")
    ] = ()
    turn_count: Calls | None = None
    tool_calls: Calls | None = None
    sandbox_ids: Annotated[
        tuple[Id, ...], Meta(max_length=1_000, description="a list of at most 1000 texts of at most 200 characters")
    ] = ()
    reward: Number | None = None
    max_reward: Number | None = None
    advantage: Number | None = None
    solved: bool | None = None
    truncated: bool | None = None
    exit: Exit | None = None
    error: str = ""
    sampled: bool = False
    spans: Annotated[tuple[Span, ...], Meta(max_length=10_000, description="a list of at most 10000 objects")] = ()


class Reading(Struct, frozen=True):
    """The result of one call of a verb.

    Attributes:
        facts: run facts (see ``FACTS``): later readings override earlier ones key by key.
        unmapped: unknown raw keys with their number of occurrences; shown, so that a renamed key is noticed.
        cursor: where to continue; None if the verb has no position (a page).
        more: a limit stopped the verb before the end: call a tail again at once, a poll within seconds.
        dropped: rejected records (a broken line, say), with the first reason in ``why_dropped``.
        implausible: how many of them are single values that their unit excludes; the rest of the result is complete.
        samples_scraped: samples before mapping (``scrape_samples_scraped``).
        sandboxes: records; the newest of each id counts.
        rollouts: new information on rollouts, oldest first; partial records of one rollout are merged.
        listed: the providers for which ``sandboxes`` has every live one: absent ones have ended.
        partial: why a listing is incomplete, if it is; "" else.
        gaps: requests in addition to the records (limits, money) that failed: "wallet: HTTP 403".
        origins: metric -> the raw keys it was read from (the first few), or a text about its computation.
        reader: the kind of log and its name, relative to the given path.
    """

    samples: tuple[Sample, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    events: tuple[Event, ...] = ()
    facts: Mapping[str, str | float] = {}
    unmapped: Mapping[str, int] = {}
    cursor: Cursor | None = None
    more: bool = False
    dropped: int = 0
    why_dropped: str = ""
    implausible: int = 0
    samples_scraped: int = 0
    sandboxes: tuple[Sandbox, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    listed: tuple[str, ...] = ()
    partial: str = ""
    gaps: tuple[str, ...] = ()
    origins: Mapping[str, str] = {}
    reader: str = ""


FACTS: Mapping[str, str] = {
    "framework": "name of the trainer framework",
    "framework_version": "its version, as reported",
    "mode": "mode of the run: sync_colocated, sync_split, one_step, async or async_colocated",
    "usual_mode": "mode that most runs of the framework have; a guess for a run whose mode no source reports",
    "lifecycle": "lifecycle, only with evidence (a final row, an exit record)",
    "lifecycle_why": "that evidence as text",
    "group_size": "rollouts per group",
    "batch_samples": "trainer samples per step",
    "max_staleness_versions": "the run's own staleness bound, in versions",
    "max_steps": "steps the run is configured for",
    "logging_steps": "largest number of trainer steps that one logged row covers",
    "max_reward": "largest possible reward of a rollout, if known: distinguishes all_solved from other equal rewards",
    "max_in_flight": "cap on rollouts in flight",
    "oversampling": "rollouts started per rollout kept (not discarded as surplus)",
    "filters_zero_advantage": "1 if groups without a gradient are dropped before training, 0 if not",
    "max_response_tokens": "response length cap",
    "max_num_seqs": "maximum of requests one engine runs at once, for engines that do not report it",
    "trainer_gpus": "GPUs of the trainer",
    "generator_gpus": "GPUs of the generator",
    "gpus": "GPUs of the whole run",
    "gpu_type": "GPU model name",
    "trainer_gpu_type": "GPU model name of the trainer, if it differs",
    "generator_gpu_type": "GPU model name of the generator, if it differs",
    "usd_per_gpu_hour": "price of a GPU-hour, as stated in [run.NAME.cost]",
    "trainer_usd_per_gpu_hour": "price of the trainer's GPUs",
    "generator_usd_per_gpu_hour": "price of the generator's GPUs",
    "target_usd_per_million_tokens": "target price of a million trained tokens, as stated in [run.NAME.cost]",
    "model": "name of the trained model",
    "has_sandbox": "1 if rollouts use sandboxes, 0 if the task needs none",
    "times_estimated": "1 if the source has no times and steps were dated backwards from the file's modification time",
    "times_copied": "1 when files that date rollouts were copied: their times are not the run's, so rates are unknown",
    "clock_offset_seconds": "seconds by which the clock of a log was ahead (negative: behind); its times are corrected",
    "fault": "fault that the trainer's log reports after its newest step, as text; empty if there is none",
    "fault_kind": "kind of that fault: collective_timeout, watchdog or worker_died; empty if there is none",
    "fault_since": "when the collective began or the worker died, epoch seconds; 0 if there is no fault",
    "run_name": "name of the run in its own files or logger",
    "source_path": "the directory from which the run was first read",
}
"""Every key a collector may put into ``Reading.facts``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a verb may read. Checked before parsing, so that a hostile or broken source costs a bounded amount.

    The defaults are above the largest real inputs: a vLLM page with 8 engines has 0.5 MB and 4,100 samples; a prime-rl
    step row 20 kB; a trackio row with a completions table 2 MB.
    """

    body_bytes: int = 16 << 20
    line_bytes: int = 4 << 20
    samples: int = 200_000
    labels: int = 128  # vllm:cache_config_info carries about 40
    tail_bytes: int = 8 << 20  # one call of `tail`, so that a long history does not delay other targets
    tail_rows: int = 20_000
    timeout_seconds: float = 4.0


class Target(Struct, frozen=True):
    """Something to read. ``name`` is shown in labels and errors; a URL never leaves the configuration."""

    name: str
    run: str
    collector: str
    actor: Actor
    url: str = ""
    path: str = ""
    interval_seconds: float = 5.0
    headers: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        """A key of the configuration for its collector (a team, an organisation, a namespace)."""
        return dict(self.options).get(name, default)


class ScrapeError(Exception):
    """A target could not be read. The message is safe to show: no URL credentials, no header, no body text."""

    def __init__(self, kind: ErrorKind, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        # Seconds that the server requested to wait.
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Collector:
    """One kind of system and the verbs to read it. A verb it lacks is None; each is bounded by `Limits`.

    Attributes:
        name: the file's name, used in config, README and `rollscope check`.
        reads: one clause for the README row.
        versions: the versions of the system whose source or output the mapping was checked against.
        parse: bytes of one page or file -> Reading. Pure except for its per-target `State` (caches).
        tail: a path and a cursor -> what was appended since, oldest first. Read-only. ``now`` (epoch seconds)
            dates rows whose source gives no time.
        poll: an HTTP client bound to one target (base URL and headers set) -> Reading. ``state["now"]`` is the event
            time of the poll, ``state["options"]`` the target's own settings.
        matches_page: is this body a page of this system? For `rollscope watch URL`.
        matches_path: is this file or directory of this system? The reason, or None.
        matches_server: does such a system answer this client? Called if a URL has no page; never with a key.
        report_seconds: how often the source reports its gauges; a gauge missing for 3 of these is stale.
        default_url: where the provider's API is, for targets without a URL.
        key_variable: environment variable that usually holds the key (``PRIME_API_KEY``); it goes into `key_header`,
            as ``Bearer KEY`` when that is ``authorization``.
        options: keys of the target's configuration that reach `poll` through ``state["options"]``.
        option_values: option -> the values that it may have, for options with a fixed set of values.
        takes_map: the user maps the source's keys to our metrics in the configuration (`[[run.NAME.target.map]]`).
        configured: options -> the collector of one target, if the options change what the collector reads.
        looks_for: a description of what `matches_path` looks for, for the message "nothing found".
        gives: every series it can report of a run of which everything is logged: under a key of its own
            (``native``), or computed from several (``derived``). Empty: not declared.
        record_fields: the fields of `Rollout` that the records contain in a run that logs everything; empty: the
            collector reads no rollout records. Further values, which are no fields: ``parts`` (records of rollouts in
            flight), ``failures`` (records of failed rollouts), ``turn versions`` (turns with the version of the state
            they saw), ``sampled`` (only some rollouts have a record).
        hints: metric -> what to set in the framework so that the metric is reported.
        records: its numbers are counted from records of single rollouts: they take priority over any metric.
        has_series: does a page that another collector recognises contain series of this one, too? For processes that
            put the metrics of several systems on one page.
        merges_servers: one target reports series of several servers, each with its address in a label.
        version_path: path at which the server answers with its version, as ``{"version": ...}``; "" if there is none.
        position: a path and a cursor of `tail` -> how far it has read; None if it does not read by bytes.
        recent: (path, limits, now, bytes) -> a cursor of `tail` that many bytes before the end of a log, with the facts
            of its first lines; None if `tail` cannot begin there.
    """

    name: str
    actor: Actor
    reads: str
    versions: str
    parse: Callable[[bytes, State, Limits], Reading] | None = None
    tail: Callable[[Path, Cursor, Limits, float], Reading] | None = None
    poll: Callable[[httpx.AsyncClient, State, Limits], Awaitable[Reading]] | None = None
    matches_page: Callable[[bytes], bool] | None = None
    matches_path: Callable[[Path], str | None] | None = None
    matches_server: Callable[[httpx.AsyncClient, Limits], Awaitable[bool]] | None = None
    report_seconds: float = 5.0
    default_url: str = ""
    key_variable: str = ""
    key_header: str = "authorization"
    options: tuple[str, ...] = ()
    option_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    takes_map: bool = False
    configured: Callable[[Mapping[str, str]], "Collector"] | None = None
    looks_for: tuple[str, ...] = ()
    gives: Mapping[tuple[str, Labels], Basis] = field(default_factory=dict)
    record_fields: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    records: bool = False
    has_series: Callable[[bytes], bool] | None = None
    merges_servers: bool = False
    version_path: str = ""
    position: Callable[[Path, Cursor], "Position | None"] | None = None
    recent: Callable[[Path, Limits, float, int], Cursor | None] | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log is read. ``log``: its name; ``read`` and ``total``: bytes."""

    log: str
    read: int
    total: int
