"""Detects a log whose times are ahead of or behind this host's clock: a wrong clock, or local times of another zone."""

# Seconds. A smaller difference is normal between the clocks of one cluster.
AHEAD_SECONDS = 30.0
# Seconds. From the time a read is dated with to its end: targets are read in turn, and simulated clocks are faster.
DELAY_SECONDS = 300.0
# Seconds. A time further ahead is no time of a clock (milliseconds as seconds), and is refused later.
LARGEST_SECONDS = 86_400.0
# Seconds. All zones differ by whole half hours (of a few by quarters).
HALF_HOUR = 1800.0
# Half hours. A log that ended longer before its last change is a copy, not one of another zone.
MOST_HALF_HOURS = 28
# Seconds. From a dated line to the last change of its file: loggers write at once, and few undated lines follow.
ZONE_SECONDS = 15.0
# Seconds. A file that is ahead by this much less than a whole number of half hours was written that much later.
LATE_SECONDS = 60.0
# Bytes at the end of a long log, which has the newest line.
END_BYTES = 64 << 10


def offset(newest: float, modified: float, now: float, local: bool) -> float:
    """Seconds by which the clock of a log is ahead, negative if it is behind; 0 if it is right.

    Args:
        newest: the newest time in the log. modified: the last change of its file. now: this host's clock.
        local: the log has local times without a zone, which are read as times of this host's zone.
    """
    # A file that was changed after `now` may have lines of that time: the read began late.
    present = modified if now < modified <= now + DELAY_SECONDS else now
    if AHEAD_SECONDS < newest - present <= LARGEST_SECONDS:
        ahead = newest - min(modified, now)
        zone = -(-(ahead - ZONE_SECONDS) // HALF_HOUR) * HALF_HOUR
        return zone if zone > 0 and zone - ahead <= LATE_SECONDS else ahead
    late = modified - newest
    half_hours = round(late / HALF_HOUR)
    is_zone = 1 <= half_hours <= MOST_HALF_HOURS and abs(late - half_hours * HALF_HOUR) <= ZONE_SECONDS
    # A file that was changed in the future has a time of its own, with which nothing can be compared.
    return -half_hours * HALF_HOUR if local and is_zone and modified <= now + AHEAD_SECONDS else 0.0


def is_other_zone(seconds: float) -> bool:
    """Returns whether a log that is this much later than its last change has local times of another zone."""
    return seconds > 0 and offset(seconds, 0.0, 0.0, local=True) % HALF_HOUR == 0
