"""Tokens trained on, each step counted once."""

from server.signals._model import Counter

COUNTER = Counter(
    name="trained_tokens_total",
    title="Trained tokens",
    unit="tokens",
    actor="trainer",
    help="Tokens trained on, each step counted once.",
    metric="trained_tokens",
    of="step",
    by=(),
)
