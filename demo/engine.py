"""One vLLM engine, simulated as a fluid of tokens.

All running requests decode in lockstep, one token an iteration, so one number, the token clock, says how far each
of them is: a request admitted at clock c with L tokens to go is done at c + L. Only events change the state; pages
look at it in between without touching it, which makes the run independent of how often anybody looks.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from math import inf

from demo.rollouts import Group, Rollout
from demo.scenarios import Scenario

# ---- histogram
# A histogram as prometheus_client keeps it, with the edges of vLLM 0.32 (vllm/v1/metrics/buckets.py) and of
# prometheus-fastapi-instrumentator 8 (HTTP_*).

# vLLM's request_latency buckets: end to end, queue, inference, prefill and decode share them.
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
# The first edge is 10 ms: fast decoding all falls below it, so only sum / count says how fast.
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
ITERATION_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
HTTP_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0,
    2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
# Latencies by handler have few edges, latencies without labels many.
HTTP_COARSE_SECONDS = (0.1, 0.5, 1.0)
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """vLLM's 1-2-5 series, up to the model's context length in tokens."""
    steps = [digit * 10.0**power for power in range(7) for digit in (1, 2, 5)]
    return tuple(edge for edge in steps if edge <= max_model_len)


class Histogram:
    """Counts per bucket and a sum. Weights may be fractions of a token; the page shows whole numbers."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0.0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        self.counts[bisect_left(self.edges, value)] += weight
        self.total += value * weight

    def cumulative(self) -> list[float]:
        """Returns counts at or below each edge, +Inf last. Rounded down after adding, so that no bucket decreases."""
        return [float(int(count)) for count in accumulate(self.counts)]


# ---- engine stats
# Statistics of a vLLM engine: counters, histograms, and time integrals, which only the truth file may use.

MAX_MODEL_LEN = 16_384  # prompt and response together never come near it; decides the edges of the token histograms
_CHUNK_TOKENS = 8_192  # vLLM's max_num_batched_tokens on H100 and newer: prefills up to this share one iteration


class EngineStats:
    """Counters (tokens, requests), histograms, and integrals (things x seconds)."""

    def __init__(self, scenario: Scenario) -> None:
        self.generated = 0
        self.preemptions = 0
        self.finished_stop = 0
        self.finished_length = 0
        self.prompt_tokens = 0
        self.prompt_hits = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.running_seconds = 0.0
        self.waiting_seconds = 0.0
        self.kv_seconds = 0.0
        self._pending_stall = 0.0
        self._max_tokens = scenario.max_tokens
        self._add_histograms()

    def _add_histograms(self) -> None:
        tokens = token_edges(MAX_MODEL_LEN)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.params_max_tokens = Histogram(tokens)
        self.prefill_computed_tokens = Histogram(tokens)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.params_n = Histogram(PARAMS_N)
        self.request_preemptions = Histogram(PREEMPTIONS)
        self.first_token_seconds = Histogram(FIRST_TOKEN_SECONDS)
        self.inter_token_seconds = Histogram(TOKEN_SECONDS)
        self.per_output_token_seconds = Histogram(TOKEN_SECONDS)
        self.e2e_seconds = Histogram(REQUEST_SECONDS)
        self.queue_seconds = Histogram(REQUEST_SECONDS)
        self.inference_seconds = Histogram(REQUEST_SECONDS)
        self.prefill_seconds = Histogram(REQUEST_SECONDS)
        self.decode_seconds = Histogram(REQUEST_SECONDS)
        self.http_seconds = Histogram(HTTP_SECONDS)
        self.http_coarse_seconds = Histogram(HTTP_COARSE_SECONDS)
        self.first_finished = 0.0

    @property
    def finished(self) -> int:
        return self.finished_stop + self.finished_length

    def prefill(self, rollout: Rollout, cached: int, computed: int) -> None:
        """Records admission of a request with `cached` prompt tokens found and `computed` tokens to compute."""
        prompt = rollout.group.prompt_tokens
        self.prefix_queries += prompt + rollout.generated
        self.prefix_hits += cached
        self.iteration_tokens.observe(min(computed, _CHUNK_TOKENS))
        # vLLM counts a prompt once; what a preempted request computes again is in no prompt counter.
        if rollout.admissions == 1:
            self.prompt_tokens += prompt
            self.prompt_hits += cached
            rollout.computed_tokens = prompt - cached

    def decode(self, running: int, ticks: float, iteration_seconds: float, stall: float) -> None:
        """Records `ticks` iterations of a batch; the first one includes the stall (prefill or pause) before it."""
        self._pending_stall += stall
        if ticks <= 0:
            return
        late = min(1.0, ticks) if self._pending_stall else 0.0
        if late:
            self.inter_token_seconds.observe(iteration_seconds + self._pending_stall, running * late)
        self.inter_token_seconds.observe(iteration_seconds, running * (ticks - late))
        self.iteration_tokens.observe(running, ticks)
        self._pending_stall = 0.0

    def finish(self, rollout: Rollout) -> None:
        """Records vLLM's request_* histograms: observed once, when the request is done."""
        self.first_finished = self.first_finished or rollout.finished
        self.finished_length += rollout.truncated
        self.finished_stop += not rollout.truncated
        self.request_prompt_tokens.observe(rollout.group.prompt_tokens)
        self.request_generation_tokens.observe(rollout.response_tokens)
        self.params_max_tokens.observe(self._max_tokens)
        self.prefill_computed_tokens.observe(rollout.computed_tokens)
        self.params_n.observe(1)
        self.request_preemptions.observe(rollout.preemptions)
        self._finish_times(rollout)

    def _finish_times(self, rollout: Rollout) -> None:
        decode = rollout.finished - rollout.first_token
        latency = rollout.finished - rollout.dispatched
        for histogram in (self.e2e_seconds, self.http_seconds, self.http_coarse_seconds):
            histogram.observe(latency)
        self.queue_seconds.observe(rollout.scheduled - rollout.dispatched)
        self.inference_seconds.observe(rollout.finished - rollout.scheduled)
        self.prefill_seconds.observe(rollout.first_token - rollout.scheduled)
        self.decode_seconds.observe(decode)
        self.per_output_token_seconds.observe(decode / max(1, rollout.response_tokens - 1))


BLOCK_TOKENS = 16  # vLLM's default KV block on CUDA; prefix hits come in whole blocks
_CLOCK_EPSILON = 1e-6  # tokens; far below one token, far above rounding of a clock that reaches 1e8 in a week


class Engine:
    """Waiting queue, running batch, KV cache. Times are seconds since the run began, KV in tokens."""

    def __init__(
        self, index: int, scenario: Scenario, finished: Callable[[Rollout, float], None],
        stats: EngineStats | None = None,
    ) -> None:  # fmt: skip
        self.index = index
        self.scenario = scenario
        self.stats = stats or EngineStats(scenario)
        self.waiting: deque[Rollout] = deque()
        self.running: dict[int, Rollout] = {}
        self.paused_until = 0.0
        self.pauses = 0
        self.resumes = 0
        self.first_paused = 0.0
        self.next_at = inf
        # Dead: the process has ended. Frozen: it hangs.
        self.is_dead = self.is_frozen = False
        # Its GPUs are used by the trainer (vLLM's sleep).
        self.is_asleep = False
        self._finished = finished
        self._now = 0.0
        self._clock = 0.0
        self._stall_until = 0.0
        self._target = inf
        self._order: list[tuple[float, int, int, Rollout]] = []
        self._first_tokens: deque[tuple[float, Rollout]] = deque()
        self._prefixes: dict[Group, int] = {}
        self._fixed_kv = 0
        self._idle_seconds = 0.0
        self._clocks_admitted = 0.0
        self.kv_watermark_tokens = int(scenario.kv_tokens * scenario.kv_watermark)

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def iteration_seconds(self) -> float:
        return self.scenario.iteration_base_seconds + self.scenario.iteration_slope_seconds * len(self.running)

    def clock_at(self, now: float) -> float:
        """Returns the token clock at `now`, which is not before the last event."""
        if not self.running:
            return self._clock
        active = max(0.0, now - max(self._now, self._stall_until))
        return min(self._clock + active / self.iteration_seconds, self._target)

    def kv_tokens_at(self, now: float) -> float:
        """Returns KV tokens of the running requests; siblings share their prompt."""
        return self._kv(self.clock_at(now))

    def generated_at(self, now: float) -> int:
        """Returns tokens generated so far, including those of unfinished requests."""
        clock = self.clock_at(now)
        return self.stats.generated + sum(_progress(rollout, clock) for rollout in self.running.values())

    def idle_seconds_at(self, now: float) -> float:
        """Returns seconds without any request."""
        return self._idle_seconds + (0.0 if self.load else max(0.0, now - self._now))

    def rollout_tokens_at(self, rollout: Rollout, now: float) -> int:
        progress = _progress(rollout, self.clock_at(now)) if rollout.id in self.running else 0
        return rollout.generated + progress

    # -- events ------------------------------------------------------------------------------------------------

    def submit(self, rollout: Rollout, now: float) -> None:
        self.sync(now)
        self.waiting.append(rollout)
        self._admit(now)

    def pause(self, now: float, seconds: float) -> None:
        """Stops iterations for `seconds`; requests keep their KV (`/pause?mode=keep`)."""
        self.sync(now)
        self.first_paused = self.first_paused if self.pauses else now
        self.pauses += 1
        self.paused_until = now + seconds
        self._stall_until = max(self._stall_until, now) + seconds
        self._aim()

    def resume(self, now: float) -> None:
        self.sync(now)
        self.resumes += 1
        self._admit(now)

    def freeze(self, now: float) -> None:
        """Stops iterations permanently. The page still answers, because another process serves it."""
        self.sync(now)
        self.is_frozen, self._stall_until = True, inf
        self._aim()

    def crash(self, now: float) -> list[Rollout]:
        """Ends the process with all of its state; returns the requests without an answer."""
        lost = self.drop(now)
        for rollout in lost:
            rollout.generated = 0
        self.is_dead = True
        return lost

    def drop(self, now: float) -> list[Rollout]:
        """Ends all requests with the tokens that they have."""
        self.sync(now)
        held = [*self.running.values(), *self.waiting]
        for rollout in self.running.values():
            progress = _progress(rollout, self._clock)
            self.stats.generated += progress
            rollout.generated += progress
        self._fixed_kv, self._clocks_admitted = 0, 0.0
        for table in (self.running, self.waiting, self._order, self._first_tokens, self._prefixes):
            table.clear()
        self._aim()
        return held

    def fire(self) -> None:
        """Returns the next own event: a request is done, or the KV cache is full."""
        now = self.next_at
        target = self._target
        self.sync(now)
        self._clock = max(self._clock, target)
        if self._finish_due(now) == 0:
            self._make_room()
        self._admit(now)

    def sync(self, now: float) -> None:
        """Advances time up to `now`, and updates the integrals."""
        if now <= self._now:
            return
        clock = self.clock_at(now)
        stall = min(now, max(self._now, self._stall_until)) - self._now
        ticks = clock - self._clock
        self._account(now, stall, ticks)
        self._pass_first_tokens(clock, self._now + stall)
        self._now, self._clock = now, clock

    def _account(self, now: float, stall: float, ticks: float) -> None:
        seconds = now - self._now
        stats = self.stats
        stats.running_seconds += len(self.running) * seconds
        self._idle_seconds += 0.0 if self.load else seconds
        stats.waiting_seconds += len(self.waiting) * seconds
        grown = len(self.running) * ticks
        stats.kv_seconds += self._kv(self._clock) * seconds + grown * (seconds - stall) / 2
        if self.running:
            stats.decode(len(self.running), ticks, self.iteration_seconds, stall)

    def _pass_first_tokens(self, clock: float, resumed: float) -> None:
        while self._first_tokens and self._first_tokens[0][0] <= clock + _CLOCK_EPSILON:
            at, rollout = self._first_tokens.popleft()
            # A preemption leaves a stale heap entry, whose clock differs from that of the current admission.
            if rollout.first_token or rollout.id not in self.running or at != rollout.clock_admitted + 1:
                continue
            rollout.first_token = resumed + max(0.0, at - self._clock) * self.iteration_seconds
            self.stats.first_token_seconds.observe(rollout.first_token - rollout.dispatched)

    # -- admission ---------------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        while self.waiting and not self.is_dead and now >= self.paused_until and self._fits(self.waiting[0]):
            self._start(self.waiting.popleft(), now)
        self._aim()

    def _fits(self, rollout: Rollout) -> bool:
        if not self.running:
            return True
        # A free block for each to grow into; otherwise a preempted request would be admitted and preempted again.
        need = rollout.generated + BLOCK_TOKENS * (len(self.running) + 1)
        need += 0 if rollout.group in self._prefixes else rollout.group.prompt_tokens
        free = self.scenario.kv_tokens - self.kv_watermark_tokens - self._kv(self._clock)
        return len(self.running) < self.scenario.max_num_seqs and need < free

    def _start(self, rollout: Rollout, now: float) -> None:
        cached = self._take_prefix(rollout.group)
        recomputed = rollout.group.prompt_tokens - cached + rollout.generated
        self._stall_until = max(self._stall_until, now) + recomputed / self.scenario.prefill_tokens_per_second
        rollout.admissions += 1
        rollout.clock_admitted = self._clock
        rollout.clock_finish = self._clock + rollout.response_tokens - rollout.generated
        self.running[rollout.id] = rollout
        self._fixed_kv += rollout.generated
        self._clocks_admitted += self._clock
        heapq.heappush(self._order, (rollout.clock_finish, rollout.id, rollout.admissions, rollout))
        self._first_tokens.append((self._clock + 1, rollout))
        if rollout.admissions == 1:
            rollout.scheduled = now
        self.stats.prefill(rollout, cached, recomputed)

    def _take_prefix(self, group: Group) -> int:
        """Returns prompt tokens found in the cache: whole blocks, while a sibling still holds them."""
        holders = self._prefixes.get(group, 0)
        self._prefixes[group] = holders + 1
        if holders:
            return (group.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self._fixed_kv += group.prompt_tokens
        return group.cached_tokens

    # -- leaving -----------------------------------------------------------------------------------------------

    def _finish_due(self, now: float) -> int:
        done = 0
        while self._order and self._order[0][0] <= self._clock + _CLOCK_EPSILON:
            _, _, admission, rollout = heapq.heappop(self._order)
            if self._is_live(rollout, admission):
                self._finish(rollout, now)
                done += 1
        return done

    def _is_live(self, rollout: Rollout, admission: int) -> bool:
        """False for a stale heap entry of a preempted request."""
        return rollout.admissions == admission and rollout.id in self.running

    def _finish(self, rollout: Rollout, now: float) -> None:
        self.stats.generated += rollout.response_tokens - rollout.generated
        self._leave(rollout)
        rollout.generated = rollout.response_tokens
        rollout.finished = now
        rollout.first_token = rollout.first_token or now
        self.stats.finish(rollout)
        self._finished(rollout, now)

    def _make_room(self) -> None:
        """Preempts the youngest request, as vLLM does: it loses its KV and moves to the head of the queue."""
        rollout = self.running[next(reversed(self.running))]
        progress = _progress(rollout, self._clock)
        self._leave(rollout)
        rollout.generated += progress
        rollout.preemptions += 1
        self.stats.generated += progress
        self.stats.preemptions += 1
        self.waiting.appendleft(rollout)

    def _leave(self, rollout: Rollout) -> None:
        del self.running[rollout.id]
        self._fixed_kv -= rollout.generated
        self._clocks_admitted -= rollout.clock_admitted
        self._prefixes[rollout.group] -= 1
        if not self._prefixes[rollout.group]:
            del self._prefixes[rollout.group]
            self._fixed_kv -= rollout.group.prompt_tokens

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _kv(self, clock: float) -> float:
        return self._fixed_kv + len(self.running) * clock - self._clocks_admitted

    def _aim(self) -> None:
        """Sets the time and the token clock of the next own event."""
        self._target = min(self._next_finish(), self._next_full())
        if self._target == inf:
            self.next_at = inf
            return
        wait = max(0.0, self._target - self._clock) * self.iteration_seconds
        self.next_at = max(self._now, self._stall_until) + wait

    def _next_finish(self) -> float:
        while self._order and not self._is_live(self._order[0][3], self._order[0][2]):
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else inf

    def _next_full(self) -> float:
        # A single request always fits (max_tokens is below the cache); preempting it would loop.
        if len(self.running) < 2:
            return inf
        return self._clock + (self.scenario.kv_tokens - self._kv(self._clock)) / len(self.running)


def _progress(rollout: Rollout, clock: float) -> int:
    """Returns whole tokens since this admission."""
    return int(clock - rollout.clock_admitted + _CLOCK_EPSILON)
