"""Records of a simulated run: its rollouts and groups, and its output."""

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
    dull: bool = False
    number: int = 0
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
    """The trainer's row of a step, logged at its end. ``useful``: expected number of samples with a gradient.

    ``groups``: (number, whether all its rewards are equal, version it was begun at) of each group of the batch.
    """

    end: float
    number: int
    values: dict[str, float]
    useful: float
    groups: tuple[tuple[int, bool, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The metrics at one instant: of each engine (None: dead), rollouts by state, samples in the queue."""

    at: float
    engines: tuple[tuple[float, ...] | None, ...]
    census: dict[str, int]
    queue: int
