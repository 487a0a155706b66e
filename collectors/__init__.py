"""Layer 1: what Rollscope reads. Imports nothing of ours above it.

A collector reads one kind of system. It is one module, or a folder with a module ``collector``, that holds a constant
``COLLECTOR`` of type :class:`collectors.model.Collector`; :func:`load` finds them all, so there is no list to edit.
The folders of `PACKAGES` hold collectors only; what several of them share is in packages of its own.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from collectors.model import Collector

# The folders that hold collectors and nothing else: one per actor, and one for rollout records.
PACKAGES = ("collectors.generators", "collectors.rollouts", "collectors.sandboxes", "collectors.trainers")


def modules(package_name: str) -> Iterator[tuple[str, ModuleType]]:
    """Name and module of every collector in one of `PACKAGES`."""
    package = importlib.import_module(package_name)
    for info in pkgutil.iter_modules(package.__path__):
        path = f"{package_name}.{info.name}"
        yield info.name, importlib.import_module(f"{path}.collector" if info.ispkg else path)


@cache
def record_formats() -> frozenset[str]:
    """Names of the collectors that read records of rollouts: what a generator made, not the generator itself."""
    package = importlib.import_module("collectors.rollouts")
    return frozenset(info.name for info in pkgutil.iter_modules(package.__path__))


@cache
def load() -> dict[str, Collector]:
    """Every collector by name.

    Raises:
        AssertionError: a module without ``COLLECTOR`` or whose name is not its file's name.
    """
    found: dict[str, Collector] = {}
    for package_name in PACKAGES:
        for name, module in modules(package_name):
            collector: Collector = module.COLLECTOR
            assert collector.name == name, f"{module.__name__}: COLLECTOR is named {collector.name!r}"
            found[collector.name] = collector
    return found
