"""Derived signals: one file each, pure. `load()` finds every module constant ``SIGNAL`` or ``COUNTER``."""

import importlib
import pkgutil
from functools import cache

from server.signals._model import Counter, Signal

__all__ = ["Counter", "Signal", "load"]


@cache
def load() -> tuple[Signal | Counter, ...]:
    """Every signal and counter, in file order.

    Raises:
        AssertionError: a module without either constant, or whose name differs from its file's.
    """
    found: list[Signal | Counter] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        item = getattr(module, "SIGNAL", None) or getattr(module, "COUNTER", None)
        assert isinstance(item, (Signal, Counter)), f"{module.__name__} has neither SIGNAL nor COUNTER"
        assert item.name == info.name, f"{module.__name__}: named {item.name!r}"
        found.append(item)
    return tuple(found)
