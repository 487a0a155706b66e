"""Of which rollouts turns and spans are kept: those one would look at, and a share of the others. Pure."""

import math
import zlib
from collections import deque

from collectors.model import Rollout
from server.rollouts import state as rollouts_state
from server.store.types import RolloutRow

# By id, so that a back-fill keeps the same ones: details are some 2 kB where a header is 0.5 kB.
ONE_OF = 8
# The slowest of the last thousand, as known so far; before twenty ended nobody is known to be slow.
SLOW_SHARE, SLOW_OF, SLOW_FROM = 0.05, 1_000, 20
# Between two looks at what is slow.
_EVERY = 50


class Slowest:
    """How long the slowest rollouts take, as far as known."""

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


def kept(record: Rollout, mixed: bool | None, state: str, before: RolloutRow | None, slow: bool) -> bool:
    """Are its details kept? What is in flight is looked at; afterwards stragglers, failures and mixed versions are.

    Decided once, when it leaves, by what is known then, in whatever order that came. What comes later decides nothing:
    to hold the details of all until nobody can say more of them would be a second write of nearly every rollout, and to
    take them when they are told once more would make a file that is read again change rows.
    """
    if state not in rollouts_state.OVER:
        return True
    if before is not None and before.state in rollouts_state.OVER:
        return before.detailed
    telling = bool(mixed or record.error or record.exit in rollouts_state.FAILED or slow)
    return telling or zlib.crc32(record.rollout_id.encode("utf-8", "surrogatepass")) % ONE_OF == 0
