"""Tells the clock of another zone from that of a copy, for logs whose lines have a time of day only."""

from collectors.training_logs import clocks


def is_ahead(seconds: float) -> bool:
    """Returns whether a log that is this much later than its last change has local times of another zone."""
    return seconds > 0 and clocks.offset(seconds, 0.0, 0.0, local=True) % clocks.HALF_HOUR == 0
