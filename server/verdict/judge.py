"""The verdict over time: what the rules say now, held against what they said before."""

from typing import Any

from server.verdict.inputs import Seen
from server.verdict.model import Verdict

Memory = dict[str, Any]
"""JSON: what a verdict must remember, stored with it under `server.verdict.model.RULES_VERSION`."""


def remember(memory: Memory | None, seen: Seen) -> tuple[Memory, Verdict]:
    """(memory, verdict) of one instant; instants come in order, and one asked twice changes nothing."""
    return memory or {}, Verdict("unknown", "missing", summary="no rule judges this run yet")
