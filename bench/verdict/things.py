"""What a simulated run is made of, and what it leaves to be read."""

from dataclasses import dataclass, field

from bench.verdict.engine import Engine, Request


@dataclass(eq=False, slots=True)
class Group:
    version: int
    need: int
    begun: int = 0
    generated: int = 0
    scored: int = 0
    over: bool = False
    members: list["Rollout"] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Rollout:
    group: Group
    tokens: float
    state: str = ""
    since: float = 0.0
    begun: float = 0.0
    turns: int = 0
    request: Request | None = None
    engine: Engine | None = None
    spent: dict[str, float] = field(default_factory=dict)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What the trainer logs of a step, at its end. ``useful``: samples with a gradient, as many as to be expected."""

    end: float
    number: int
    values: dict[str, float]
    useful: float


@dataclass(frozen=True, slots=True)
class Page:
    """What can be read at one instant: of each engine, rollouts by state, samples in the queue."""

    at: float
    engines: tuple[tuple[float, ...], ...]
    census: dict[str, int]
    queue: int
