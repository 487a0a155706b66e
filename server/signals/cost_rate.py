"""What the run costs an hour, and how many tokens it trained within its last 10 steps: restarts included."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from server.signals import sandbox_account
from server.signals.gpus import fleet
from server.signals.model import STEP_MINIMUM, STEP_WINDOW, NotApplicable, Unknown, View
from server.signals.step_windows import row_limit

SANDBOX = "sandbox_cost_usd_per_hour"
TOKENS = "trained_tokens"
_HINT = "this trainer reports no trained tokens"
# Seconds. Loading and compiling take 10 to 40 minutes. After a longer break it is unknown whether the run held the
# GPUs.
RESTART_SECONDS = 3600.0

Row = list[float]
"""[incarnation, step, event time, tokens trained]."""


def spend(view: View) -> tuple[float, str] | Unknown:
    """USD per hour of all GPUs, each once, and of the sandboxes; with remarks on their completeness."""
    pools = fleet(view.facts, view.mode).pools
    lacks = dict.fromkeys(pool.lacks for pool in pools if pool.lacks)
    if lacks:
        return Unknown("; ".join(lacks))
    usd, words = sum(pool.usd_per_hour or 0.0 for pool in pools), " + ".join(pool.words for pool in pools)
    basis = "; ".join(dict.fromkeys(pool.basis for pool in pools if pool.basis))
    said, sandboxes = f" ({basis})" if basis else "", sandbox_account.SANDBOX_COST_USD_PER_HOUR.compute(view)
    if isinstance(sandboxes, NotApplicable):
        return usd, words + said
    if isinstance(sandboxes, Unknown):
        return usd, f"{words}{said}; sandboxes not included: their price is not set"
    return usd + sandboxes[0].value, f"{words} + sandboxes{said}"


def usd_per_million(usd_per_hour: float, tokens_per_second: float) -> float:
    return usd_per_hour / 3600 / tokens_per_second * 1e6


def trained(memory: Any, view: View) -> tuple[list[Row], float | Unknown]:
    """(memory, loss tokens per second of wall time) over the last 10 steps, across incarnations of the trainer.

    A step that a restart undid counts with its time, not with its tokens. ``memory``: the last rows, or None.
    """
    rows = _rows(memory or [], view)
    if len(rows) <= STEP_MINIMUM:
        done = max(0, len(rows) - 1)
        few = f"{done} of the {STEP_MINIMUM} steps needed so far, after a first one; no action needed"
        return rows, Unknown(few if rows else _HINT)
    limit = row_limit(view.steps)
    if view.now - rows[-1][2] > limit:
        return rows, Unknown(f"no step for more than {limit:.0f} s")
    window = view.fact("logging_steps")
    tokens = sum(after[3] * _stands_for(before, after, window) for before, after in pairwise(rows))
    seconds = sum(_seconds(before, after) for before, after in pairwise(rows))
    return rows, tokens / seconds if tokens > 0 and seconds > 0 else Unknown("no token was trained in the last steps")


def _rows(memory: Sequence[Row], view: View) -> list[Row]:
    """The newest rows with tokens, the one before the window first: those of earlier incarnations unless undone."""
    found = view.steps.rows((TOKENS, ()), count=STEP_WINDOW + 1, until=view.now)
    own = [[float(one.incarnation), float(one.number), one.ts, one.values[(TOKENS, ())]] for one in found]
    if not own:
        return list(memory)
    life, first = own[0][:2]
    return [*(row for row in memory if row[0] < life and row[1] < first), *own][-STEP_WINDOW - 1 :]


def _seconds(before: Row, after: Row) -> float:
    gap = max(0.0, after[2] - before[2])
    return gap if before[0] == after[0] else min(gap, RESTART_SECONDS)


def _stands_for(before: Row, after: Row, window: float | None) -> float:
    """Number of steps that a row is the mean of, as in `server.derive.counters`."""
    return 1.0 if window is None else max(1.0, min(window, after[1] - before[1]))
