"""Receivers of notifications: one module per kind in `server.notify.receivers`, each with a constant ``RECEIVER``."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from server.notify import receivers
from server.notify.model import Option, Receiver

__all__ = ["Option", "Receiver", "load"]


@cache
def load() -> Mapping[str, Receiver]:
    """Returns every receiver by kind, in file order.

    Raises:
        AssertionError: a module without the constant, or whose kind differs from its file's name.
    """
    receivers_by_kind: dict[str, Receiver] = {}
    for info in sorted(pkgutil.iter_modules(receivers.__path__), key=lambda module: module.name):
        module_name = f"{receivers.__name__}.{info.name}"
        item = getattr(importlib.import_module(module_name), "RECEIVER", None)
        assert isinstance(item, Receiver), f"{module_name} has no RECEIVER"
        assert item.kind == info.name, f"{module_name}: kind is {item.kind!r}"
        assert (item.render is None) != (item.deliver is None), f"{module_name}: render or deliver"
        receivers_by_kind[item.kind] = item
    return receivers_by_kind
