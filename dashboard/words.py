"""The words that screens, documentation and API use, each with what it means here."""

WORDS: tuple[tuple[str, str], ...] = (
    ("Actor", "Trainer, generator or sandbox. The queue (buffer) sits between generator and trainer."),
    ("Target", "A system that is read: an engine's metrics page, a run's log files, a provider's API."),
    ("Metric", "What a target reports, under its canonical name and unit."),
    ("Signal", "What is derived from metrics and records: the numbers of this dashboard, the API and the alerts."),
    ("Staleness", "How many policy versions behind a rollout is when it is trained on: versions published to the "
     "generators. Of a whole trajectory, of its tokens, or of the environment's state."),
    ("Zero-advantage group", "All rewards of the group are equal, so it carries no gradient: all solved, none solved, "
     "equal for an unknown reason, or too few that are valid."),
    ("Capacity", "What the trainer could train on if it never waited: samples / (step - wait), per second."),
    ("Delivered", "What was admitted to the trainer by the run's own filters, per second."),
    ("Trainable", "Of what was delivered, what is fresh enough and has an advantage that is not zero."),
    ("Exit", "How a rollout left: trained, aborted, truncated, stale, with zero advantage, or by an error. Each leaves "
     "once; the first cause counts."),
    ("Unknown", "A value of its own: nothing tells it now. It says why and what to log, and is never shown as zero."),
    ("Not applicable", "The run has no such thing: a math run has no sandbox, a synchronous run no queue."),
    ("Mode", "sync_colocated, sync_split, one_step, async or async_colocated. It decides which signals apply."),
    ("Lifecycle", "starting (load and compile: 10 to 40 minutes are normal), running, paused, finished or crashed. "
     "A finished run pages nobody."),
    ("Incarnation", "One life of a trainer between starts. A restart from a checkpoint begins a new one."),
    ("Purpose", "Traffic for train, eval or judge. Signals are of training only unless they say otherwise."),
    ("Rule, pending, firing, resolved, silence, inhibit", "As in Prometheus and Alertmanager."),
)  # fmt: skip
"""(word, meaning), in the order in which they build on each other."""
