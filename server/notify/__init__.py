"""Receivers: one file per kind. `load()` finds every module constant ``RECEIVER``."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from server.notify._model import Option, Receiver

__all__ = ["Option", "Receiver", "load"]

# Files of this package that are no receivers.
SHARED = ("outbound",)


@cache
def load() -> Mapping[str, Receiver]:
    """Every receiver by kind, in file order.

    Raises:
        AssertionError: a module without the constant, or whose kind differs from its file's name.
    """
    found: dict[str, Receiver] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if info.name.startswith("_") or info.name in SHARED:
            continue
        item = getattr(importlib.import_module(f"{__name__}.{info.name}"), "RECEIVER", None)
        assert isinstance(item, Receiver), f"server.notify.{info.name} has no RECEIVER"
        assert item.kind == info.name, f"server.notify.{info.name}: kind is {item.kind!r}"
        assert (item.render is None) != (item.deliver is None), f"server.notify.{info.name}: render or deliver"
        found[item.kind] = item
    return found
