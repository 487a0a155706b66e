"""Statistics of a vLLM engine: counters, histograms, and time integrals, which only the truth file may use."""

from server.demo import histogram as edges
from server.demo.histogram import Histogram
from server.demo.rollouts import Rollout
from server.demo.scenarios import Scenario

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
        tokens = edges.token_edges(MAX_MODEL_LEN)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.params_max_tokens = Histogram(tokens)
        self.prefill_computed_tokens = Histogram(tokens)
        self.iteration_tokens = Histogram(edges.ITERATION_TOKENS)
        self.params_n = Histogram(edges.PARAMS_N)
        self.request_preemptions = Histogram(edges.PREEMPTIONS)
        self.first_token_seconds = Histogram(edges.FIRST_TOKEN_SECONDS)
        self.inter_token_seconds = Histogram(edges.TOKEN_SECONDS)
        self.per_output_token_seconds = Histogram(edges.TOKEN_SECONDS)
        self.e2e_seconds = Histogram(edges.REQUEST_SECONDS)
        self.queue_seconds = Histogram(edges.REQUEST_SECONDS)
        self.inference_seconds = Histogram(edges.REQUEST_SECONDS)
        self.prefill_seconds = Histogram(edges.REQUEST_SECONDS)
        self.decode_seconds = Histogram(edges.REQUEST_SECONDS)
        self.http_seconds = Histogram(edges.HTTP_SECONDS)
        self.http_coarse_seconds = Histogram(edges.HTTP_COARSE_SECONDS)
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
