"""Looks up runs by name, and caches queries within one block of `Reader.one_state`."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from server.query.run_state import UnknownRun
from server.store.types import RunRow

if TYPE_CHECKING:
    from server.store import Store

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
