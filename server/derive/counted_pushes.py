"""Records which changes of pushed sandboxes the stored counters contain, where their time alone cannot decide it.

A push is stamped before it is committed, so it can be committed after the tick of its stamp was computed. After a
restart, a change stamped shortly before the watermark may therefore be counted or not.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b

from server.ingest.readings import OVERLAP_MS, PUSHED
from server.ingest.sandboxes import SandboxArrival
from server.store.types import SandboxRow

STATE = "counted_pushes"
_VERSION = 1
# Bytes of a change's hash. Two of 10,000 changes are equal with a probability of 3e-12.
_HASH_BYTES = 8


class CountedPushes:
    """Changes counted in the last `OVERLAP_MS` before the watermark: hash -> time of the change, epoch ms."""

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}
        # Stores of older versions do not have the state; all changes up to the watermark are then considered counted.
        self._recorded = False
        self._watermark = 0

    def add(self, arrival: SandboxArrival) -> None:
        """Records the changes that were counted."""
        row = arrival.row
        if row.target != PUSHED:
            return
        changes = (
            (arrival.created, row.first_seen),
            (arrival.became_ready, row.ready_seen),
            (arrival.failed, row.failed_seen),
        )
        for name, (happened, at) in zip(("created", "ready", "failed"), changes, strict=True):
            if happened and at is not None:
                self._changes[_hash(row, name)] = at

    def missed(self, row: SandboxRow, name: str, at: int | None) -> bool:
        """Do the restored counters lack this change? ``at``: its time, epoch ms; None: it did not happen."""
        if at is None or at > self._watermark:
            return at is not None
        recent = at > self._watermark - OVERLAP_MS
        return recent and self._recorded and row.target == PUSHED and _hash(row, name) not in self._changes

    def states(self, watermark: float) -> dict[str, tuple[int, str]]:
        """Returns the state, stored in the transaction of the counters. ``watermark``: epoch seconds."""
        start = round(watermark * 1000) - OVERLAP_MS
        self._changes = {change: at for change, at in self._changes.items() if at > start}
        return {STATE: (_VERSION, json.dumps(self._changes))}

    def restore(self, states: Mapping[str, tuple[int, str]], watermark: int) -> None:
        """Loads the stored state. ``watermark``: epoch ms."""
        version, text = states.get(STATE, (0, ""))
        self._watermark, self._recorded = watermark, version == _VERSION
        self._changes = json.loads(text) if self._recorded else {}


def _hash(row: SandboxRow, change: str) -> str:
    return blake2b(f"{row.record.provider}\0{row.record.id}\0{change}".encode(), digest_size=_HASH_BYTES).hexdigest()
