"""Decides which rollouts keep their turns and spans: notable ones, and a share of the others. Pure."""

import math
import zlib
from collections import deque

from collectors.model import Rollout
from server.rollouts import state as rollouts_state
from server.store.types import RolloutRow

# One rollout in this many keeps its details (2 kB; a header is 0.5 kB). Chosen by id, so a back-fill chooses the same.
ONE_OF = 8
# Share of the last rollouts that counts as slow.
SLOW_SHARE = 0.05
# Number of last rollouts whose durations are compared.
SLOW_OF = 1_000
# Before this many rollouts have ended, none counts as slow.
SLOW_FROM = 20
# Rollouts between two computations of the slow limit.
_EVERY = 50


class Slowest:
    """Durations of the last rollouts, and the limit above which a rollout counts as slow."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=SLOW_OF)
        self._limit, self._since = -math.inf, 0

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self._since += 1
        if self._since >= _EVERY or len(self._last) == SLOW_FROM:
            self._since = 0
            self._limit = sorted(self._last)[int(len(self._last) * (1 - SLOW_SHARE))]

    def slow(self, seconds: float | None) -> bool:
        return seconds is not None and seconds > self._limit


def keeps_details(record: Rollout, mixed: bool | None, state: str, before: RolloutRow | None, slow: bool) -> bool:
    """Are the rollout's details kept? Yes in flight; afterwards if it is slow, failed or of mixed versions, or 1 in 8.

    Decided once, when the rollout ends. Later updates do not change it: deferring the decision would double the writes,
    and details that appear when a file is read again would change rows.
    """
    if state not in rollouts_state.OVER:
        return True
    if before is not None and before.state in rollouts_state.OVER:
        return before.detailed
    notable = bool(mixed or record.error or record.exit in rollouts_state.FAILED or slow)
    return notable or zlib.crc32(record.rollout_id.encode("utf-8", "surrogatepass")) % ONE_OF == 0
