"""The run's GPUs and their price per hour, from facts that the user states or that a framework's files contain.

A run that trains and generates on the same GPUs has one pool, which is counted once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from server.signals.window import Gauge

COLOCATED = ("sync_colocated", "async_colocated")


@dataclass(frozen=True, slots=True)
class ListPrice:
    """Default price of a GPU-hour in USD where none is stated (None: no published price), and its kind."""

    usd: float | None
    what: str


PRICES: Mapping[str, ListPrice] = {
    # Cost of ownership per hour over the lifetime; renting by the hour costs more than twice as much.
    "H200": ListPrice(1.59, "cost of ownership, not of rent"),
    # lambda.ai/instances, "8x" rows, per GPU-hour, on demand, read 2026-09-20; the A100 is the 80 GB SXM.
    "A100": ListPrice(2.79, "Lambda on demand"),
    "H100": ListPrice(3.99, "Lambda on demand"),
    "B200": ListPrice(6.69, "Lambda on demand"),
    # hyperstack.cloud/gpu-pricing, on demand, read 2026-08-26.
    "B300": ListPrice(7.40, "Hyperstack on demand"),
    # coreweave.com/pricing: 42.00 for an instance of four, on demand, read 2026-09-20.
    "GB200": ListPrice(10.50, "CoreWeave on demand"),
    # runware.ai/pricing, serverless, per hour, read 2026-10-07.
    "L40S": ListPrice(1.60, "Runware serverless"),
    # Sold by contract only as of 2026-11.
    "GB300": ListPrice(None, "by contract only"),
}
"""Default price by type. It gives only the order of magnitude; a stated price has precedence."""

ROLES = ("trainer", "generator")
NO_PRICE = "the price of a GPU-hour is unknown: set [run.NAME.cost] gpu or usd_per_gpu_hour"


def gpu_key(gauge: Gauge) -> tuple[str, str]:
    """Which GPU a series of the hardware is about, and which instance of a split one.

    Two exporters of one host report the same GPU; without a UUID an index is unique only within its target.
    """
    labels = dict(gauge.labels)
    gpu = labels.get("gpu", "")
    return (gpu if gpu != labels.get("index") else f"{gauge.target} {gpu}", labels.get("mig", ""))


def known_type(name: str) -> str:
    """``NVIDIA H100 80GB HBM3`` as `PRICES` calls it; "" for one it does not have."""
    return next((word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word in PRICES), "")


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one price. None: unknown, and ``lacks`` names the setting."""

    gpus: float | None
    usd_per_gpu_hour: float | None
    basis: str = ""
    lacks: str = ""

    @property
    def usd_per_hour(self) -> float | None:
        if self.gpus is None or self.usd_per_gpu_hour is None:
            return None
        return self.gpus * self.usd_per_gpu_hour

    @property
    def words(self) -> str:
        """``64 x 1.59``."""
        return f"{self.gpus:g} x {self.usd_per_gpu_hour:g}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The trainer's pool and the generator's; the very same object where they share their GPUs."""

    trainer: Pool
    generator: Pool

    @property
    def shared(self) -> bool:
        return self.trainer is self.generator

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Each once."""
        return (self.trainer,) if self.shared else (self.trainer, self.generator)


def fleet(facts: Mapping[str, str | float], mode: str) -> Fleet:
    """The run's GPUs by what is known of them."""
    own, whole = {role: _positive(facts, f"{role}_gpus") for role in ROLES}, _positive(facts, "gpus")
    if mode in COLOCATED:
        counts = [count for count in (whole, *own.values()) if count is not None]
        pool = _pool(facts, "trainer", max(counts, default=None), "gpus")
        return Fleet(pool, pool)
    trainer = own["trainer"] or _rest(whole, own["generator"])
    generator = own["generator"] or _rest(whole, own["trainer"])
    return Fleet(
        _pool(facts, "trainer", trainer, "trainer_gpus"), _pool(facts, "generator", generator, "generator_gpus")
    )


def _rest(whole: float | None, other: float | None) -> float | None:
    return whole - other if whole is not None and other is not None and whole > other else None


def _pool(facts: Mapping[str, str | float], role: str, gpus: float | None, key: str) -> Pool:
    usd, basis = _price(facts, role)
    lacks = [f"the number of GPUs is unknown: set [run.NAME.cost] {key}"] if gpus is None else []
    lacks += [NO_PRICE] if usd is None else []
    return Pool(gpus, usd, basis, "; ".join(lacks))


def _price(facts: Mapping[str, str | float], role: str) -> tuple[float | None, str]:
    """Price of a GPU-hour of a role: as stated, else the default of its type with a text that names it."""
    for name in (f"{role}_usd_per_gpu_hour", "usd_per_gpu_hour"):
        if (stated := _positive(facts, name)) is not None:
            return stated, ""
    kind = known_type(str(facts.get(f"{role}_gpu_type") or facts.get("gpu_type") or ""))
    default = PRICES.get(kind)
    return (None, "") if default is None or default.usd is None else (default.usd, f"{kind} default: {default.what}")


def _positive(facts: Mapping[str, str | float], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
