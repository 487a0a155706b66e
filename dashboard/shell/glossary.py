"""The glossary of the screens, the documentation and the API."""

WORDS: tuple[tuple[str, str], ...] = (
    ("Actor", "Trainer, generator or sandbox. The queue (buffer) is between generator and trainer."),
    ("Target", "A system that is read: an engine's metrics page, a run's log files, a provider's API."),
    ("Metric", "What a target reports, under its canonical name and unit."),
    ("Signal", "What is derived from metrics and records: the numbers of dashboard, API and alerts."),
    ("Staleness", "How many policy versions behind a rollout is when it is trained on, counted in versions published "
     "to the generators: of the whole trajectory, of its tokens, or of the environment's state."),
    ("Zero-advantage group", "A group whose rewards are all equal, so that it carries no gradient: all solved, none "
     "solved, equal for an unknown reason, or too few valid rewards."),
    ("Capacity", "What the trainer could consume if it never waited: samples / (step - wait), per second."),
    ("Delivered", "What the run's own filters admitted to the trainer, per second."),
    ("Trainable", "The part of what was delivered that is fresh enough and has an advantage other than zero."),
    ("Exit", "How a rollout left: trained, aborted, truncated, stale, with zero advantage, or by an error. Each leaves "
     "once; the first cause counts."),
    ("Unknown", "A state of its own: no source reports the value now. It comes with the reason and what to log, and is "
     "never shown as zero."),
    ("Not applicable", "The run has no such thing: a math run has no sandbox, a synchronous run has no queue."),
    ("Mode", "sync_colocated, sync_split, one_step, async or async_colocated. It decides which signals apply."),
    ("Lifecycle", "starting (loading and compiling: 10 to 40 minutes are normal), running, paused, finished or "
     "crashed. A finished run sends no alerts."),
    ("Incarnation", "The time of a trainer between two starts. A restart from a checkpoint begins a new one."),
    ("Purpose", "Traffic for train, eval or judge. Signals cover training only, unless they state otherwise."),
    ("Rule, pending, firing, resolved, silence, inhibit", "As in Prometheus and Alertmanager."),
)  # fmt: skip
"""(term, meaning); a term uses only terms that come before it."""
