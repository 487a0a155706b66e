"""Sandboxes the run asked for, each once."""

from server.signals._model import Counter

COUNTER = Counter(
    name="sandboxes_created_total",
    title="Sandboxes created",
    unit="sandboxes",
    actor="sandbox",
    help="Sandboxes of the run, each id counted once.",
    metric="sandbox_created",
    of="sandbox",
)
