"""Layer 1: what Rollscope reads. Imports nothing of ours above it.

A collector reads one kind of system. It is one file holding a constant ``COLLECTOR`` of type
:class:`collectors.model.Collector`; :func:`load` finds them all, so there is no list to edit.
"""

import importlib
import pkgutil
from functools import cache

from collectors.model import Collector

__dist__ = "rollscope"

# The folders that hold collectors; a folder is an actor's (or of rollout records), a file is one system.
PACKAGES = ("collectors.generators", "collectors.rollouts", "collectors.sandboxes", "collectors.trainers")


@cache
def record_formats() -> frozenset[str]:
    """Names of the collectors that read records of rollouts: what a generator made, not the generator itself."""
    package = importlib.import_module("collectors.rollouts")
    return frozenset(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))


@cache
def load() -> dict[str, Collector]:
    """Every collector by name.

    Raises:
        AssertionError: a module without ``COLLECTOR`` or whose name is not its file's name.
    """
    found: dict[str, Collector] = {}
    for package_name in PACKAGES:
        package = importlib.import_module(package_name)
        for info in pkgutil.iter_modules(package.__path__):
            if info.name.startswith("_"):
                continue
            module = importlib.import_module(f"{package_name}.{info.name}")
            collector: Collector = module.COLLECTOR
            assert collector.name == info.name, f"{module.__name__}: COLLECTOR is named {collector.name!r}"
            found[collector.name] = collector
    return found
