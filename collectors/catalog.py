"""The type of a catalogue row, and functions to write one of each kind.

A row defines a metric independently of its source. The keys of a framework are in the collector's table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from collectors.model import Actor

Kind = Literal["gauge", "counter", "histogram"]
Reduction = Literal["instant", "cumulative", "per_step", "window_delta"]

# A larger count, amount or time is an error of the source: 10^15 tokens are 300 years of an engine's work, 10^15
# seconds 30 million years. Beyond 9 x 10^15 a float no longer counts by one.
LARGEST = 1e15
# Losses, norms and estimates are 32-bit floats and may be as large in a run that diverges; FLOPs are counted by the
# 10^15 a second. Sums and products over a whole fleet of them still fit.
LARGEST_FLOAT = 3.5e38
_FLOATS = frozenset({"", "nats", "flops"})
# May be below zero: estimates, a temperature, an account that is overdrawn, a difference of versions.
_SIGNED = frozenset({"", "nats", "celsius", "usd", "versions"})
# A share is at most 1; up to 5 % more is the source's rounding (blocks, two clocks) and is stored unchanged.
LARGEST_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric a collector may report.

    Attributes:
        unit: the name of the base unit; empty for a pure number.
        kind: Prometheus' type.
        reduction: what one value covers. ``instant``: the moment; ``cumulative``: since the process began;
            ``per_step``: one trainer step; ``window_delta``: since the previous value.
        actor: the actor that the number describes, which may differ from the reporting one.
        lowest, highest: the range that its unit allows; other values are errors.
    """

    name: str
    unit: str
    kind: Kind
    reduction: Reduction
    actor: Actor
    help: str
    lowest: float = field(init=False)
    highest: float = field(init=False)

    def __post_init__(self) -> None:
        highest = LARGEST_FLOAT if self.unit in _FLOATS else LARGEST_RATIO if self.unit == "ratio" else LARGEST
        object.__setattr__(self, "highest", highest)
        object.__setattr__(self, "lowest", -highest if self.unit in _SIGNED and self.kind != "counter" else 0.0)

    def cannot_be(self, value: float) -> str:
        """Why the value is impossible, as text; "" if it is possible (NaN is no value)."""
        if value < self.lowest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be below {self.lowest:g}"
        if value > self.highest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be above {self.highest:g}"
        return ""


@dataclass(frozen=True, slots=True)
class Rows:
    """Writes rows of one actor, so that the tables stay narrow."""

    actor: Actor

    def gauge(self, name: str, unit: str, help: str) -> Metric:
        """A value of the moment."""
        return Metric(name, unit, "gauge", "instant", self.actor, help)

    def step(self, name: str, unit: str, help: str) -> Metric:
        """A value of one trainer step."""
        return Metric(name, unit, "gauge", "per_step", self.actor, help)

    def delta(self, name: str, unit: str, help: str) -> Metric:
        """The amount since the previous report: add values up, never take differences."""
        return Metric(name, unit, "gauge", "window_delta", self.actor, help)

    def counter(self, name: str, unit: str, help: str) -> Metric:
        """A count since the process began; a decrease is a restart."""
        return Metric(name, unit, "counter", "cumulative", self.actor, help)

    def histogram(self, name: str, unit: str, help: str) -> Metric:
        """Cumulative counts with the source's own edges."""
        return Metric(name, unit, "histogram", "cumulative", self.actor, help)


# ---- generator
# Generator metrics, reported by inference engines.

_g = Rows("generator")

GENERATOR_ROWS = (
    # Load.
    _g.gauge("generator_requests_running", "requests", "Requests in the running batch."),
    _g.gauge("generator_requests_waiting", "requests", "Requests waiting for a slot, all reasons together."),
    _g.gauge("generator_requests_waiting_by_reason", "requests", "Part of the waiting requests; label reason."),
    _g.gauge("generator_requests_paused", "requests", "Requests paused by a weight sync."),
    _g.gauge(
        "generator_request_limit", "requests", "Maximum of requests that the engine runs at once, by its configuration."
    ),
    _g.gauge("generator_paused", "", "1 while generation is paused: requests are held and no tokens are generated."),
    _g.gauge(
        "generator_up", "", "0 while the Prometheus that scrapes the engine gets no answer, 1 when it answers again."
    ),
    _g.gauge("generator_asleep", "", "1 when the engine reports that it sleeps; 0 does not prove that it is awake."),
    _g.gauge(
        "generator_prefill_only",
        "",
        "1: the engine computes prompts for others, 0: it generates from their KV caches; absent: it does both.",
    ),
    _g.gauge("generator_token_throughput", "tokens/s", "Generated tokens per second, as the engine computes it."),
    # KV cache.
    _g.gauge("kv_cache_usage_ratio", "ratio", "Share of the KV cache in use."),
    _g.gauge("kv_cache_capacity_tokens", "tokens", "Tokens the KV cache holds."),
    _g.gauge("kv_cache_used_tokens", "tokens", "Tokens in the KV cache."),
    _g.gauge("kv_concurrency_limit", "requests", "Full-length requests the KV cache holds, as the engine computes it."),
    _g.gauge(
        "generator_max_sequence_tokens", "tokens", "Longest sequence that the engine accepts, prompt and response."
    ),
    _g.gauge("live_sequence_tokens", "tokens", "Sum of the lengths of running sequences."),
    _g.gauge(
        "prefix_cache_hit_ratio", "ratio", "Share of prompt tokens found in the prefix cache, over the engine's window."
    ),
    _g.counter("prefix_cache_queries_total", "tokens", "Prompt tokens looked up in the prefix cache."),
    _g.counter("prefix_cache_hits_total", "tokens", "Prompt tokens found in the prefix cache."),
    # Work done.
    _g.counter("generator_requests_finished_total", "requests", "Requests that ended; label reason."),
    _g.counter("generator_requests_aborted_total", "requests", "Requests that were aborted."),
    _g.counter("generator_requests_rejected_total", "requests", "Requests refused at admission; label reason."),
    _g.counter("generator_tokens_total", "tokens", "Tokens generated."),
    _g.counter("generator_prompt_tokens_total", "tokens", "Prompt tokens processed."),
    _g.counter(
        "generator_prompt_tokens_by_source_total", "tokens", "Prompt tokens by where their KV came from; label source."
    ),
    _g.counter(
        "generator_preemptions_total", "requests", "Requests removed from the running batch for lack of KV cache."
    ),
    _g.counter("generator_corrupted_requests_total", "requests", "Requests with NaN logits."),
    _g.counter("generator_idle_seconds_total", "seconds", "Time the scheduler had nothing to do."),
    _g.counter("speculative_draft_tokens_total", "tokens", "Tokens drafted for speculative decoding."),
    _g.counter("speculative_accepted_tokens_total", "tokens", "Drafted tokens that were accepted."),
    _g.gauge("speculative_accept_ratio", "ratio", "Share of drafted tokens accepted, over the engine's window."),
    _g.counter("speculative_drafts_total", "drafts", "Drafts verified: one for each sequence and step."),
    _g.counter(
        "speculative_accepted_tokens_by_position_total",
        "tokens",
        "Drafted tokens accepted at a position; label position.",
    ),
    _g.gauge(
        "speculative_step_tokens", "tokens", "Tokens per step and sequence with the model's own, engine's window."
    ),
    _g.counter(
        "generator_flops_total", "flops", "Estimated FLOPs per GPU; 0 unless the engine is configured to count them."
    ),
    # Weight updates as the engine sees them.
    _g.counter(
        "generator_control_requests_total", "requests", "Pause, resume and weight-update calls answered; label call."
    ),
    _g.counter(
        "generator_control_seconds_total", "seconds", "Duration of pause, resume and weight-update calls; label call."
    ),
    _g.gauge(
        "generator_control_requests_active",
        "requests",
        "Pause, resume and weight-update calls in progress; label call.",
    ),
    _g.histogram(
        "generator_weight_update_seconds", "seconds", "Duration of weight-update operations; label operation."
    ),
    _g.histogram("generator_sleep_seconds", "seconds", "Duration of sleep and wake operations; label operation."),
    _g.gauge("generator_weight_load_seconds", "seconds", "Duration of the last weight load."),
    _g.gauge("generator_policy_version", "versions", "Version of the weights the engine serves."),
    _g.gauge("generator_start_time_seconds", "seconds", "When the engine's API process began, epoch."),
    # Distributions.
    _g.histogram("generator_response_tokens", "tokens", "Generated tokens per finished request."),
    _g.histogram("generator_prompt_tokens", "tokens", "Prompt tokens per finished request."),
    _g.histogram("generator_iteration_tokens", "tokens", "Tokens per engine iteration."),
    _g.histogram("generator_request_preemptions", "preemptions", "Preemptions per finished request."),
    _g.histogram("time_to_first_token_seconds", "seconds", "Arrival to first token."),
    _g.histogram(
        "inter_token_latency_seconds", "seconds", "Gap between two tokens; fast decode falls below the first edge."
    ),
    _g.histogram("request_time_per_token_seconds", "seconds", "Mean gap between tokens of a finished request."),
    _g.histogram("e2e_request_seconds", "seconds", "Arrival to last token."),
    _g.histogram("generator_queue_seconds", "seconds", "Time waiting for a slot."),
    _g.gauge("generator_queue_seconds_mean", "seconds", "Mean time waiting for a slot, over the engine's window."),
    _g.histogram("generator_inference_seconds", "seconds", "Time in the running batch."),
    _g.histogram("generator_prefill_seconds", "seconds", "Time in prefill."),
    _g.histogram("kv_transfer_seconds", "seconds", "Transfer of a request's KV cache from prefill to decode engine."),
    _g.histogram("generator_decode_seconds", "seconds", "Time in decode."),
    # A frontend's view of the requests it passes to engines; never added to the engines' own numbers.
    _g.gauge("frontend_requests_in_flight", "requests", "Requests that a frontend has passed on and not answered."),
    _g.gauge("frontend_requests_queued", "requests", "Requests that wait in a frontend."),
    _g.counter("frontend_requests_total", "requests", "Requests a frontend has answered; label status."),
    _g.counter("frontend_tokens_total", "tokens", "Tokens a frontend has passed on."),
    _g.histogram("frontend_response_tokens", "tokens", "Generated tokens per request, as a frontend counts them."),
    _g.histogram("frontend_prompt_tokens", "tokens", "Prompt tokens per request, as a frontend counts them."),
    _g.histogram("frontend_time_to_first_token_seconds", "seconds", "Arrival at a frontend to first token."),
    _g.histogram("frontend_inter_token_latency_seconds", "seconds", "Gap between two tokens, at a frontend."),
    _g.histogram("frontend_request_seconds", "seconds", "Arrival at a frontend to last token."),
)


# ---- hardware
# GPU metrics, reported by the hardware for all processes on it.

HARDWARE_ROWS = (
    # What a GPU does. The three activities distinguish work from waiting; utilisation does not.
    _g.gauge("gpu_engine_active_ratio", "ratio", "Share of time in which any compute or graphics engine was busy."),
    _g.gauge("gpu_tensor_active_ratio", "ratio", "Share of cycles in which the tensor cores were busy."),
    _g.gauge("gpu_dram_active_ratio", "ratio", "Share of cycles in which GPU memory was read or written."),
    _g.gauge("gpu_sm_active_ratio", "ratio", "Share of cycles in which an SM held at least one warp."),
    _g.gauge(
        "gpu_utilization_ratio",
        "ratio",
        "Share of time in which any kernel was resident: 1 while a collective spins and nothing is computed.",
    ),
    _g.gauge("gpu_memory_used_bytes", "bytes", "GPU memory in use, including caches that an engine reserves."),
    _g.gauge("gpu_memory_free_bytes", "bytes", "GPU memory free."),
    _g.gauge("gpu_power_watts", "watts", "Power drawn."),
    _g.counter("gpu_energy_joules_total", "joules", "Energy used since the driver was loaded."),
    _g.gauge("gpu_temperature_celsius", "celsius", "Temperature of the GPU."),
    _g.gauge("gpu_memory_temperature_celsius", "celsius", "Temperature of the GPU's memory."),
    _g.gauge("gpu_sm_clock_hertz", "hertz", "Clock of the SMs."),
    _g.gauge("gpu_nvlink_bytes_per_second", "bytes/s", "Data over the GPU's NVLinks; label direction: sent, received."),
    # Errors.
    _g.gauge("gpu_last_xid", "", "Code of the last XID error, also after it is over; 0 if there was none."),
    _g.counter("gpu_xid_errors_total", "errors", "XID errors since the exporter began; label xid."),
    _g.counter("gpu_ecc_errors_total", "errors", "ECC errors since the driver was loaded; label kind."),
    _g.counter("gpu_remapped_rows_total", "rows", "Memory rows replaced after errors; label kind."),
    _g.gauge("gpu_row_remap_failed", "", "1 when a broken memory row could not be replaced."),
)


# ---- rollout
# Rollout metrics: rewards, lengths, groups, the queue between generator and trainer.

_t = Rows("trainer")

ROLLOUT_ROWS = (
    # Learning signal.
    _t.step("reward_mean", "", "Mean reward of the rollouts."),
    _t.step("reward_std", "", "Standard deviation of the reward over all rollouts of the step."),
    _t.step("reward_group_std_mean", "", "Mean over groups of the reward's standard deviation inside a group."),
    _t.step("reward_component_mean", "", "Mean of one reward function; label function."),
    _t.step("evaluation_score", "", "Score of an evaluation, as the trainer logs it; label task."),
    _t.step("evaluation_samples", "samples", "Number of samples that an evaluation scored; label task."),
    _t.step("solve_ratio", "ratio", "Share of rollouts that solved the task."),
    _t.step("groups_zero_advantage_ratio", "ratio", "Share of groups whose rewards are all equal, cause not reported."),
    _t.step("groups_all_solved_ratio", "ratio", "Share of groups solved by every rollout."),
    _t.step("groups_none_solved_ratio", "ratio", "Share of groups solved by no rollout."),
    _t.step("groups_mixed_ratio", "ratio", "Share of groups with differing rewards: those that carry a gradient."),
    _t.step("filtered_groups", "groups", "Groups thrown away by the run's own filters."),
    _t.step("trainable_ratio", "ratio", "Share of rollouts that carry a gradient."),
    # Shape.
    _t.step("response_tokens_mean", "tokens", "Generated tokens per rollout, mean."),
    _t.step("response_tokens_max", "tokens", "Generated tokens per rollout, largest."),
    _t.step("response_tokens_min", "tokens", "Generated tokens per rollout, smallest."),
    _t.step("response_tokens_p90", "tokens", "Generated tokens per rollout, 90th percentile."),
    _t.step("prompt_tokens_mean", "tokens", "Prompt tokens per rollout, including tool output, mean."),
    _t.step("truncation_ratio", "ratio", "Share of rollouts truncated at a length limit, which hides drift."),
    _t.step("turns_mean", "turns", "Turns per rollout, mean."),
    _t.step("turns_max", "turns", "Turns per rollout, largest."),
    _t.step("tool_calls_mean", "calls", "Tool calls per rollout, mean."),
    _t.step("tool_failure_ratio", "ratio", "Share of tool calls that failed."),
    _t.step("tool_call_seconds_mean", "seconds", "Latency of a tool call, mean."),
    # Production.
    _t.step("rollout_error_ratio", "ratio", "Share of rollouts that ended in an error."),
    _t.step("rollout_errors", "rollouts", "Rollouts that ended in an error of one type; label type."),
    _t.step("rollout_cancelled_ratio", "ratio", "Share of rollouts cancelled before their end."),
    _t.step("oversize_dropped_samples", "samples", "Samples dropped because they do not fit into a row of the batch."),
    _t.step("rollout_seconds_mean", "seconds", "Duration of a rollout, start to finish, mean."),
    _t.step("rollout_seconds_max", "seconds", "Duration of a rollout, start to finish, largest."),
    _t.step("rollout_setup_seconds_mean", "seconds", "Environment setup per rollout, mean."),
    _t.step("rollout_model_seconds_mean", "seconds", "Time in model calls per rollout, mean."),
    _t.step("rollout_harness_seconds_mean", "seconds", "Time in tools and harness per rollout, mean."),
    _t.step("rollout_scoring_seconds_mean", "seconds", "Time in scoring per rollout, mean."),
    _t.step("score_wait_seconds", "seconds", "Time a scorer waited for a finished group."),
    _t.step("score_block_seconds", "seconds", "Time finished groups waited because scoring was full."),
    _t.step("backpressure_seconds", "seconds", "Time that production was held back because the queue was full."),
    _t.step("orchestrator_step_seconds", "seconds", "Wall time of the orchestrator's own step."),
    _t.step("batch_pack_seconds", "seconds", "Time to assemble a batch for the trainer."),
    _t.step("rollout_retries", "requests", "Generation requests that had to be repeated."),
    # Live state.
    _g.gauge("queue_samples", "samples", "Rollouts ready for the trainer, in the trainer's samples."),
    _g.gauge("queue_capacity_samples", "samples", "Samples the queue can hold."),
    _g.gauge("queue_groups", "groups", "Groups ready for the trainer, if the number of samples is unknown."),
    _g.gauge("queue_capacity_groups", "groups", "Groups the queue can hold, if the number of samples is unknown."),
    _g.gauge("queue_age_seconds", "seconds", "Time a consumed sample had spent in the queue, mean."),
    _g.gauge("score_queue_groups", "groups", "Groups generated and waiting for their reward."),
    _g.gauge("in_flight_rollouts", "rollouts", "Rollouts in flight; label state (generating, suspended, eval)."),
    _g.gauge("in_flight_capacity_rollouts", "rollouts", "Maximum of rollouts in flight."),
    _g.gauge(
        "rollout_tokens_per_second", "tokens/s", "Tokens generated per second, as the rollout workers count them."
    ),
)


# ---- router
# Router metrics, reported by processes that pass requests to engines.

_r = Rows("generator")

ROUTER_ROWS = (
    # Workers.
    _r.gauge("router_workers", "workers", "Workers registered with a router."),
    _r.gauge("router_worker_healthy", "", "1 while a router considers a worker healthy, else 0; label worker."),
    _r.gauge("router_circuit_state", "", "Circuit breaker of a worker: 0 closed, 1 open, 2 half open; label worker."),
    # Load.
    _r.gauge(
        "router_requests_in_flight",
        "requests",
        "Requests that a router has sent to a worker; label worker if reported.",
    ),
    _r.gauge("router_requests_queued", "requests", "Requests that wait in a router; label class or deployment."),
    _r.gauge("router_requests_by_age", "requests", "Requests in flight by age, not cumulative; label up_to_seconds."),
    _r.gauge("router_requests_prefill", "requests", "Requests at a worker without a first token; label worker."),
    _r.gauge("router_requests_decode", "requests", "Requests at a worker after their first token; label worker."),
    _r.gauge("router_requests_per_second", "requests/s", "Requests per second, as the router computes it."),
    # Work done.
    _r.counter(
        "router_requests_total", "requests", "Requests that a router accepted; label worker if it counts per worker."
    ),
    _r.counter("router_errors_total", "requests", "Requests that ended in an error; label reason."),
    _r.counter("router_worker_errors_total", "errors", "Errors between a router and its workers; label reason."),
    _r.counter("router_retries_total", "requests", "Requests retried."),
    _r.counter("router_retries_exhausted_total", "requests", "Requests given up after the last retry."),
    _r.counter("router_rejected_total", "requests", "Requests rejected by a rate limit or a full queue; label reason."),
    _r.counter("router_preemptions_total", "requests", "Requests removed from a router by a more urgent one."),
    _r.counter("router_cache_hits_total", "requests", "Requests sent to a worker that has a long prefix of theirs."),
    _r.counter("router_cache_misses_total", "requests", "Requests of which no worker has a long prefix."),
    _r.counter("router_tokens_total", "tokens", "Tokens of answers that went through a router."),
    _r.counter("router_prompt_tokens_total", "tokens", "Tokens of prompts that went through a router."),
    # Times.
    _r.histogram("router_request_seconds", "seconds", "Arrival at a router to the end of the answer."),
    _r.gauge("router_request_seconds_mean", "seconds", "Mean request time over the router's window; label worker."),
    _r.gauge("router_inter_token_seconds_mean", "seconds", "Mean gap between tokens, router's window; label worker."),
    _r.gauge("router_request_quantile_seconds", "seconds", "Quantile of request times over the router's window."),
    _r.gauge("router_queue_quantile_seconds", "seconds", "Quantile of times in a router's queue; label class."),
    _r.gauge(
        "router_time_to_first_token_quantile_seconds", "seconds", "Quantile of times to a first token; label quantile."
    ),
    _r.gauge("router_inter_token_quantile_seconds", "seconds", "Quantile of gaps between tokens; label quantile."),
)


# ---- sandbox
# Sandbox metrics, reported by providers about the machines of rollouts.

_s = Rows("sandbox")

SANDBOX_ROWS = (
    _s.gauge("sandboxes", "sandboxes", "Sandboxes by canonical state; label state."),
    _s.gauge(
        "sandbox_quota_used", "", "Quota in use; label resource: concurrent, starting, creates_per_second, cpu, ..."
    ),
    _s.gauge("sandbox_quota_limit", "", "Quota granted; label resource, as for sandbox_quota_used."),
    _s.gauge("sandbox_account_suspended", "", "1 while the provider has suspended the account, else 0."),
    _s.gauge("sandbox_creates_per_second", "sandboxes/s", "Creations per second, as the provider counts them."),
    _s.gauge("sandbox_sessions", "sessions", "Sessions of an environment server; label state."),
    _s.gauge("sandbox_credit_usd", "usd", "Credit left with the provider."),
    _s.gauge("sandbox_cost_usd_per_hour", "usd/h", "Current spending rate, as reported by the provider."),
    _s.gauge(
        "sandbox_oldest_pending_seconds",
        "seconds",
        "Age of the oldest sandbox that is not ready; it is in no histogram yet.",
    ),
    _s.gauge("sandboxes_dangling", "sandboxes", "Live sandboxes that belong to no known run."),
    _s.counter("sandboxes_created_total", "sandboxes", "Sandboxes requested."),
    _s.counter("sandbox_failures_total", "sandboxes", "Sandboxes that failed; label cause."),
    _s.counter("sandbox_throttled_total", "calls", "Calls that a provider throttled; label provider."),
    _s.counter(
        "rollouts_seen_total", "rollouts", "Rollouts in sandboxes that ended, including lost ones, by environment."
    ),
    _s.counter(
        "rollouts_infra_failed_total", "rollouts", "Rollouts that ended because their sandbox failed, by environment."
    ),
    _s.counter(
        "rollout_attempt_errors_total",
        "errors",
        "Errors of rollouts, including retried attempts; labels environment, type.",
    ),
    _s.histogram("sandbox_spinup_seconds", "seconds", "Requested to ready; label image (cached, built, unknown)."),
    _s.histogram("sandbox_exec_seconds", "seconds", "Duration of a command in a sandbox."),
)


# ---- trainer
# Trainer metrics: the step and its phases, the update, what arrived to be trained on.

TRAINER_ROWS = (
    # The step and its terms.
    _t.step("trainer_step_seconds", "seconds", "Wall time of one trainer step, from end to end."),
    _t.step("trainer_wait_seconds", "seconds", "Part of the step the trainer waited for samples."),
    _t.step("trainer_compute_seconds", "seconds", "Part of the step spent on log-probs, forward, backward, optimizer."),
    _t.step("trainer_weight_sync_seconds", "seconds", "Part of the step spent publishing weights to the generators."),
    _t.step("trainer_checkpoint_seconds", "seconds", "Part of the step spent writing checkpoints."),
    _t.step("trainer_other_seconds", "seconds", "Rest of the step: step - wait - compute - weight sync - checkpoint."),
    _t.step("trainer_data_load_seconds", "seconds", "Part of the step spent loading and collating a batch at hand."),
    _t.step("trainer_logprob_seconds", "seconds", "Part of compute: old and reference log-probabilities."),
    _t.step("trainer_forward_seconds", "seconds", "Part of compute: forward passes."),
    _t.step("trainer_optimizer_seconds", "seconds", "Part of compute: optimizer steps."),
    _t.step("trainer_eval_seconds", "seconds", "Part of the step spent on evaluation."),
    _t.step("generation_seconds", "seconds", "Generation inside the step; synchronous modes only."),
    _t.step("reward_seconds", "seconds", "Scoring within the step, or per scored batch if scoring runs in parallel."),
    _t.step("weight_sync_pause_seconds", "seconds", "Part of weight sync until the generators were paused."),
    _t.step("weight_sync_barrier_seconds", "seconds", "Part of weight sync spent waiting for the other ranks."),
    _t.step("weight_sync_transfer_seconds", "seconds", "Part of weight sync spent moving bytes."),
    _t.step("weight_sync_bytes", "bytes", "Bytes that the weight update sent, after compression."),
    _t.gauge(
        "trainer_phase_active",
        "",
        "1 while the trainer reports this phase (wait, compute, weight_sync, checkpoint, eval); label phase.",
    ),
    # Amount of work and its efficiency.
    _t.step("trainer_samples", "samples", "Samples the step consumed."),
    _t.step("trainer_groups", "groups", "Groups the step consumed."),
    _t.step("trained_tokens", "tokens", "Loss tokens the step trained on."),
    _t.step("processed_tokens", "tokens", "Tokens that passed through the model, including prompts and masked tokens."),
    _t.step("trainer_tokens_per_second", "tokens/s", "Tokens per second; label basis: wall (whole step) or busy."),
    _t.step("trainer_mfu_ratio", "ratio", "Model FLOPs utilisation; label basis: wall (whole step) or busy (compute)."),
    _t.step("trainer_peak_memory_bytes", "bytes", "Largest accelerator memory in use during the step."),
    # Not a share: rows with a common prefix (tree packing) hold more tokens than their length; TRL logs 1.05 to 1.23.
    _t.step("packing_ratio", "", "Tokens per packed row over its length; above 1 with shared prefixes."),
    _t.step("padding_ratio", "ratio", "Share of padding in the batch."),
    _t.step("masked_tokens_ratio", "ratio", "Share of response tokens kept out of the loss."),
    # The update.
    _t.step("loss_mean", "", "Policy loss; look for jumps, because its level means little."),
    _t.step("gradient_norm", "", "Gradient norm before clipping."),
    _t.step("gradient_nonfinite", "steps", "1 when the step's gradient norm was NaN or infinite, else 0."),
    _t.step("learning_rate", "", "Learning rate."),
    _t.step("entropy_mean", "nats", "Mean token entropy of the policy."),
    _t.step("clip_ratio", "ratio", "Share of tokens whose importance ratio was clipped."),
    _t.step("mismatch_kl_mean", "nats", "KL between the policy that is trained and the one that generated."),
    _t.step(
        "mismatch_logprob_difference_mean", "nats", "Mean absolute log-prob difference, trainer against generator."
    ),
    _t.step(
        "mismatch_logprob_difference_max", "nats", "Largest absolute log-prob difference, trainer against generator."
    ),
    _t.step("importance_ratio_mean", "", "Mean importance-sampling ratio, trainer over generator."),
    _t.step("effective_sample_ratio", "ratio", "Effective sample size of the importance weights, as a share of all."),
    _t.step("reference_kl_mean", "nats", "KL to the frozen reference policy."),
    _t.step("policy_version", "versions", "Version of the weights as published to the generators."),
    # Freshness of what was trained.
    _t.step("staleness_versions_mean", "versions", "Trajectory staleness of consumed rollouts, mean."),
    _t.step("staleness_versions_max", "versions", "Trajectory staleness of consumed rollouts, largest."),
    _t.step(
        "staleness_in_flight_versions_mean", "versions", "Part of the staleness that arises during generation, mean."
    ),
    _t.step(
        "staleness_in_flight_versions_max", "versions", "Part of the staleness that arises during generation, largest."
    ),
    _t.step("staleness_in_queue_versions_mean", "versions", "Part of the staleness that arises in the queue, mean."),
    _t.step("staleness_in_queue_versions_max", "versions", "Part of the staleness that arises in the queue, largest."),
    _t.step("token_staleness_versions_mean", "versions", "Staleness over loss tokens, mean."),
    _t.step("mixed_version_ratio", "ratio", "Share of rollouts whose tokens span several policy versions."),
    _t.step("stale_dropped_rollouts", "rollouts", "Rollouts dropped as too stale during the step."),
    _t.step("dispatch_gate_wait_seconds", "seconds", "Time that dispatch waited for the trainer to publish a policy."),
)


# ---- init
# The vocabulary: every metric a collector may report, with unit, kind, reduction, actor and help.

__all__ = ["METRICS", "Kind", "Metric", "Reduction"]

_TABLES = (TRAINER_ROWS, ROLLOUT_ROWS, GENERATOR_ROWS, ROUTER_ROWS, HARDWARE_ROWS, SANDBOX_ROWS)

METRICS: Mapping[str, Metric] = {metric.name: metric for table in _TABLES for metric in table}
