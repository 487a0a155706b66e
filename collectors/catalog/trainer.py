"""Trainer metrics: the step and its phases, the update, what arrived to be trained on.

A step is wait + compute + weight sync + checkpoint + other. Frameworks name the wait differently, and in synchronous
modes the same key means generation; collectors map each key to the right metric.
"""

from collectors.catalog.row import Rows

_t = Rows("trainer")

ROWS = (
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
    _t.step("weight_sync_pause_seconds", "seconds", "Part of weight sync during which generators were paused."),
    _t.step("weight_sync_barrier_seconds", "seconds", "Part of weight sync spent waiting for the other ranks."),
    _t.step("weight_sync_transfer_seconds", "seconds", "Part of weight sync spent moving bytes."),
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
