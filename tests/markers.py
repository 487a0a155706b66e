"""Marks each test with the environments it needs, so that `make test-fast` can leave them out.

A test needs what its fixtures and helper functions use. Helper functions are followed within the `tests` package.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.order import cpu_seconds

MARKERS = {
    "tests.support_postgres": "postgres",
    "tests.browser_support": "browser",
    "tests.support_writers": "writers",
    "tests.support_sdks": "sdks",
    "tests.e2e.program": "process",
    "tests.killed": "process",
    "subprocess": "process",
}
"""Module -> marker of the tests that use one of its functions or classes."""


def mark(item: pytest.Item) -> None:
    """Adds the markers of a test. A parametrised fixture has marked its SQLite and PostgreSQL cases already."""
    if not isinstance(item, pytest.Function):
        return
    markers = set(needed(item.function))
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        markers.update(*(needed(definition.func) for definition in definitions))
    if item.get_closest_marker("sqlite"):
        markers.discard("postgres")
    if cpu_seconds(item.path):
        markers.add("slow")
    for name in sorted(markers):
        item.add_marker(name)


@cache  # a helper function is used by many tests
def needed(function: Callable[..., Any]) -> frozenset[str]:
    """Markers of everything that a function uses, directly or through functions of the `tests` package."""
    markers: set[str] = set()
    seen: set[FunctionType] = set()
    queue = [function]
    while queue:
        current = inspect.unwrap(queue.pop())
        if not isinstance(current, FunctionType) or current in seen:
            continue
        seen.add(current)
        for value in _globals_used(current):
            module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if module in MARKERS:
                markers.add(MARKERS[module])
            elif callable(value) and str(module).startswith("tests."):
                queue.append(value)
    return frozenset(markers)


def _globals_used(function: FunctionType) -> Iterator[Any]:
    """Values of the globals that a function names, and of their attributes where these are modules of `tests`."""
    codes: list[CodeType] = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for value in [function.__globals__[name] for name in code.co_names if name in function.__globals__]:
            yield value
            if isinstance(value, ModuleType) and value.__name__.startswith("tests."):
                yield from (getattr(value, name) for name in code.co_names if hasattr(value, name))
