"""Generator metrics, reported by inference engines.

Engine counters count requests of every purpose (train, eval, judge, retries) and turns, not rollouts; request
histograms move only when a request finishes, so with long responses they lag by one response.
"""

from collectors.catalog.row import Rows

_g = Rows("generator")

ROWS = (
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
