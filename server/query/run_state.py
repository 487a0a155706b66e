"""Derives the state of a run that the header, banner, Runs, API, `/metrics` and command line show.

Pure: stored facts and the reader's "now" in, one `RunState` out.
"""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from server.lib.clock import CatchUp, loads

if TYPE_CHECKING:
    # `rollscope status` against a server must not load the database library.
    from server.store.generators import TargetHealth
    from server.store.types import RunRow
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from server.store.types import RunRow

if TYPE_CHECKING:
    from server.store import Store

StateName = Literal["live", "catching_up", "stale", "not_collected", "finished"]
STATES: tuple[StateName, ...] = ("live", "catching_up", "stale", "not_collected", "finished")

# A collector stamps a run at every step of 5 s. Four missed ones are no slow disk, and with the page's own cache of
# 4 s a dead collector is on the screen within 30 s.
NOT_COLLECTED_SECONDS = 20.0
# Seconds without an answer of any target: a failed scrape and its retries after 5 and 10 s are no news yet.
UNANSWERED_SECONDS = 30.0
# A tick's value is 5 s old; after a minute without a newer one the data has stopped, unless steps take longer.
OLD_SECONDS = 60.0
# Below this share the estimate of the remaining time is too uncertain.
LEAST_PROGRESS = 0.02

OVER = ("finished", "crashed")


class RunState(Struct, frozen=True):
    """The state of a run. Times are epoch seconds.

    Attributes:
        name: ``finished`` includes crashed runs; the lifecycle distinguishes them.
        since: ``stale``: the newest datum. ``not_collected``: the last collection. ``finished``: the newest datum.
            ``catching_up``: where in event time it began. None for ``live``, and where it is not recorded.
        as_of: up to when the numbers are true: the newest datum; while catching up the driver's position.
        progress: 0..1, while catching up.
        seconds_left: estimate, while catching up.
        target: the present that a catch-up heads for.
        bytes_read, bytes_total, steps_read: as the collector counts them, while catching up.
    """

    name: StateName
    since: float | None = None
    as_of: float | None = None
    progress: float | None = None
    seconds_left: float | None = None
    target: float | None = None
    bytes_read: int | None = None
    bytes_total: int | None = None
    steps_read: int | None = None

    @property
    def over(self) -> bool:
        return self.name == "finished"

    @property
    def present(self) -> bool:
        """Do the newest numbers describe the run as it is now, or as it ended?"""
        return self.name in ("live", "finished")


LIVE = RunState("live")


class Facts(Struct, frozen=True):
    """What is stored of a run that decides its state. Times are epoch seconds.

    Attributes:
        collected_at: when a collector last worked on the run.
        catch_up: how far the collector was behind then.
        newest: the newest value of any signal that is measured, not only computed.
        stepped: the newest step of the trainer if files of rollouts were copied, because such a file has the time of
            its copy; else None.
        patience: how old `newest` may be: the limit for steps where steps take long.
        targets: how many targets the run has; `up` of them answer.
        answered_at: when one of them last answered.
    """

    now: float
    lifecycle: str
    collected_at: float | None
    catch_up: CatchUp | None
    newest: float | None
    patience: float
    targets: int
    up: int
    answered_at: float | None
    stepped: float | None = None


def run_state(facts: Facts) -> RunState:
    """The state of a run. The order of the rules matters: a run that is over needs no collector."""
    newest = facts.newest
    if facts.lifecycle in OVER:
        end = newest if facts.stepped is None else facts.stepped
        return RunState("finished", end, end)
    if facts.collected_at is None or facts.now - facts.collected_at > NOT_COLLECTED_SECONDS:
        return RunState("not_collected", facts.collected_at, newest)
    if facts.catch_up is not None:
        return _catching_up(facts.catch_up)
    silent = facts.targets > 0 and facts.up == 0
    if silent and (facts.answered_at is None or facts.now - facts.answered_at > UNANSWERED_SECONDS):
        return RunState("stale", facts.answered_at, newest)
    if newest is None or facts.now - newest > max(OLD_SECONDS, facts.patience):
        return RunState("stale", newest, newest)
    return RunState("live", None, newest)


def _catching_up(catch_up: CatchUp) -> RunState:
    progress = _progress(catch_up)
    left = catch_up.seconds_left
    if left is None and progress is not None and progress >= LEAST_PROGRESS:
        left = catch_up.seconds * (1 - progress) / progress
    # Both are estimates: tenths of a percent and whole seconds.
    return RunState(
        "catching_up", catch_up.start, catch_up.position, None if progress is None else round(progress, 3),
        None if left is None else round(left), catch_up.target,
        catch_up.bytes_read, catch_up.bytes_total, catch_up.steps_read,
    )  # fmt: skip


def _progress(catch_up: CatchUp) -> float | None:
    """Progress by bytes where they are counted, because event time does not show how much of a log is left."""
    if catch_up.bytes_total:
        return min(1.0, (catch_up.bytes_read or 0) / catch_up.bytes_total)
    if catch_up.start is None or catch_up.position is None or catch_up.target <= catch_up.start:
        return None
    return min(1.0, max(0.0, (catch_up.position - catch_up.start) / (catch_up.target - catch_up.start)))


def state_of(
    row: "RunRow", now: float, newest: float | None, stepped: float | None, patience: float, health: "TargetHealth"
) -> RunState:
    """The state of a stored run. ``newest``, ``patience``: as in `Facts`; ``stepped``: the trainer's newest step."""
    collected = _collected_at(row, health.read_at)
    return run_state(
        Facts(
            now,
            row.lifecycle,
            collected,
            stored_catch_up(row),
            newest,
            patience,
            health.targets,
            health.up,
            health.answered_at,
            stepped if row.facts.get("times_copied") else None,
        )
    )


def stored_catch_up(row: "RunRow") -> CatchUp | None:
    """How far the collector was behind when it last wrote. The only reader of that record."""
    return loads(row.catch_up)


def _collected_at(row: "RunRow", read_at: float | None) -> float | None:
    """When a collector last worked on a run (epoch s).

    A store written before this was recorded shows it by its newest tick and its newest read (``read_at``).
    """
    if row.collected_at is not None:
        return row.collected_at / 1000
    tick_at = None if row.watermark is None else row.watermark / 1000
    return max((ts for ts in (tick_at, read_at) if ts is not None), default=None)


class UnknownRun(KeyError):
    """No run of that name."""


# ---- run lookup
# Looks up runs by name, and caches queries within one block of `Reader.one_state`.

_T = TypeVar("_T")
_RESULTS: ContextVar[dict[Hashable, Any] | None] = ContextVar("rollscope_query_results", default=None)


@contextmanager
def one_state(store: "Store") -> Iterator[None]:
    """Reads of this thread inside the block see one state of the store; results of `cached` last until its end."""
    with store.one_state():
        before = _RESULTS.set({})
        try:
            yield
        finally:
            _RESULTS.reset(before)


def cached(key: Hashable, read: Callable[[], _T]) -> _T:
    """Returns ``read()``; inside a block of `one_state` it is called once per key."""
    results = _RESULTS.get()
    if results is None:
        return read()
    if key not in results:
        results[key] = read()
    result: _T = results[key]
    return result


def stored_run(store: "Store", run: str) -> RunRow:
    """Returns the row of a run; raises `UnknownRun`."""
    row = store.runs.get(run)
    if row is None:
        raise UnknownRun(run)
    return row


def position(store: "Store", run: str) -> tuple[int, int]:
    """Returns (generation, newest seq) of a run; raises `UnknownRun`."""
    cursor = cached((store, "position", run), lambda: store.runs.cursor(run))
    if cursor is None:
        raise UnknownRun(run)
    return cursor
