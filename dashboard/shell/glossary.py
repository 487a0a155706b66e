"""The glossary of the screens, the documentation and the API."""

WORDS: tuple[tuple[str, str], ...] = (
    ("Run", "One training job, from its first start to its end. Restarts belong to the same run."),
    ("Rollout", "One episode of the generator: the answer to a prompt, with all turns and tool calls. Trainers call it "
     "a sample."),
    ("Group", "The rollouts of one prompt whose rewards are compared with each other."),
    ("Actor", "Trainer, generator or sandbox. The queue (buffer) is between generator and trainer."),
    ("Target", "A system that is read: an engine's metrics page, a run's log files, a provider's API."),
    ("Metric", "What a target reports, under its canonical name and unit."),
    ("Signal", "What is derived from metrics and records: the numbers of dashboard, API and alerts."),
    ("Staleness", "Number of policy versions published to the generators between the generation of a rollout and "
     "its use by the trainer. Measured for the trajectory, for each token and for the environment's state."),
    ("Zero-advantage group", "A group whose rewards are all equal, so that it carries no gradient: all solved, none "
     "solved, equal for an unknown reason, or too few valid rewards."),
    ("KV ceiling", "Number of requests that fit into the engines' KV caches at the current sequence length."),
    ("Gate", "The orchestrator's stop of dispatch while new rollouts would become too stale."),
    ("Open step", "The trainer step that has begun and not ended."),
    ("Capacity", "What the trainer could consume if it never waited: samples / (step - wait), per second."),
    ("Delivered", "Samples that the run's own filters admitted to the trainer, per second."),
    ("Trainable", "The part of the delivered samples that is fresh enough and has an advantage other than zero."),
    ("Exit", "How a rollout left the run: trained, aborted, truncated, stale, with zero advantage, or by an error. "
     "Each rollout leaves once; the first cause counts."),
    ("Unknown", "A state of its own: no source reports the value now. It comes with the reason and what to log, and is "
     "never shown as zero."),
    ("Not applicable", "The run has no such thing: a math run has no sandbox, a synchronous run has no queue."),
    ("Mode", "sync_colocated, sync_split, one_step, async or async_colocated. It decides which signals apply."),
    ("Lifecycle", "starting (loading and compiling: 10 to 40 minutes are normal), running, paused, finished or "
     "crashed. A finished run sends no alerts."),
    ("Incarnation", "The time of a trainer between two starts. A restart from a checkpoint begins a new one."),
    ("Purpose", "What a rollout is generated for: training (train), evaluation (eval) or scoring by a judge (judge). "
     "Signals cover training only, unless they state otherwise."),
    ("Rule, pending, firing, resolved, silence, inhibit", "As in Prometheus and Alertmanager."),
)  # fmt: skip
"""(term, meaning); a term uses only terms that come before it."""
