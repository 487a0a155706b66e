"""Recognises step files that were copied: their modification times are of the copy, not of the run."""

import math
from collections.abc import Iterable

# With fewer files nothing is concluded: a run may write two files at once.
STEPS_LEAST = 4
# Seconds. No trainer makes steps faster on average; a copy writes the files of a step within milliseconds.
STEP_SECONDS = 0.05
NOTE = "files were copied: their times are not the run's"


def copied_until(times: Iterable[float]) -> float:
    """Modification time of the newest file that was copied, or -inf.

    Args:
        times: modification times (epoch s), one of each step. Later ones may be the run's own, if it continued.
    """
    ordered = sorted(times)
    for last in range(len(ordered), STEPS_LEAST - 1, -1):
        # The run may continue after a copy: find the longest beginning that was written at once.
        if ordered[last - 1] - ordered[0] < STEP_SECONDS * (last - 1):
            return ordered[last - 1]
    return -math.inf
