"""Derived signals, pure: one module per topic. `load()` collects their definitions."""

import importlib
from functools import cache

from server.signals.model import Counter, Signal

__all__ = ["Counter", "Signal", "load"]

# The modules with definitions; the others of this package hold what definitions share.
TOPICS = (
    "run",
    "trainer",
    "training_health",
    "scores",
    "weights",
    "generator",
    "latency",
    "engines",
    "kv_cache",
    "gpu_health",
    "roles",
    "routers",
    "speculative",
    "queue",
    "staleness",
    "rollouts",
    "groups",
    "sandboxes",
    "sandbox_spinup",
    "cost",
    "drift",
)


@cache
def load() -> tuple[Signal | Counter, ...]:
    """Every signal and counter, ordered by name.

    Raises:
        AssertionError: two definitions have the same name.
    """
    found: dict[str, Signal | Counter] = {}
    for topic in TOPICS:
        module = importlib.import_module(f"{__name__}.{topic}")
        signals = [item for item in vars(module).values() if isinstance(item, Signal)]
        for item in (*signals, *getattr(module, "COUNTERS", ())):
            assert found.setdefault(item.name, item) is item, f"{__name__}.{topic}: {item.name!r} is defined twice"
    return tuple(found[name] for name in sorted(found))
