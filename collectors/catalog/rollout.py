"""Rollout metrics: rewards, lengths, groups, the queue between generator and trainer.

The actor is the trainer if the trainer's log has the metric, and the generator for metrics of production. Per-step
values cover the rollouts the step consumed unless the help text states otherwise.
"""

from collectors.catalog.row import Rows

_t = Rows("trainer")
_g = Rows("generator")

ROWS = (
    # Learning signal.
    _t.step("reward_mean", "", "Mean reward of the rollouts."),
    _t.step("reward_std", "", "Standard deviation of the reward over all rollouts of the step."),
    _t.step("reward_group_std_mean", "", "Mean over groups of the reward's standard deviation inside a group."),
    _t.step("reward_component_mean", "", "Mean of one reward function; label function."),
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
