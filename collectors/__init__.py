"""Layer 1: the collectors. Imports no package of the layers above.

A collector reads one kind of system. It is one module, or a folder with a module ``collector``, that holds a constant
``COLLECTOR`` of type :class:`collectors.model.Collector`; :func:`load` finds them all, so there is no list to edit.
The folders of `PACKAGES` have collectors only; shared modules are in packages of their own.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from collectors.model import Collector

# The folders with collectors: one per actor, and one for rollout records.
PACKAGES = ("collectors.generators", "collectors.rollouts", "collectors.sandboxes", "collectors.trainers")


def modules(package_name: str) -> Iterator[tuple[str, ModuleType]]:
    """Name and module of every collector in one of `PACKAGES`."""
    package = importlib.import_module(package_name)
    for info in pkgutil.iter_modules(package.__path__):
        path = f"{package_name}.{info.name}"
        yield info.name, importlib.import_module(f"{path}.collector" if info.ispkg else path)


@cache
def record_formats() -> frozenset[str]:
    """Names of the collectors that read rollout records, as opposed to collectors of the generator itself."""
    package = importlib.import_module("collectors.rollouts")
    return frozenset(info.name for info in pkgutil.iter_modules(package.__path__))


@cache
def load() -> dict[str, Collector]:
    """Every collector by name.

    Raises:
        AssertionError: a module without ``COLLECTOR`` or whose name is not its file's name.
    """
    collectors: dict[str, Collector] = {}
    for package_name in PACKAGES:
        for name, module in modules(package_name):
            collector: Collector = module.COLLECTOR
            assert collector.name == name, f"{module.__name__}: COLLECTOR is named {collector.name!r}"
            collectors[collector.name] = collector
    return collectors
