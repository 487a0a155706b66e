"""Both sides of a run, with the assumptions and missing inputs of the estimate."""

from dataclasses import dataclass, field

from server.verdict.what_if.types import NEEDS, Bound, CurrentNumbers, Side

# A shorter wait is noise of batches: then the trainer is the limit, and the held generator's side could deliver more.
NOISE = 0.05
_FLIP: dict[Bound, Bound] = {"": "", "at least": "at most", "at most": "at least", "about": "about"}


def flipped(bound: Bound) -> Bound:
    """Returns the bound of a quantity that falls if the other rises."""
    return _FLIP[bound]


def joined(*bounds: Bound) -> Bound:
    """Returns the bound of a product; opposite bounds leave none."""
    distinct = {bound for bound in bounds if bound}
    return distinct.pop() if len(distinct) == 1 else "about" if distinct else ""


@dataclass(slots=True)
class Notes:
    """Assumptions and missing inputs of an estimate."""

    assumptions: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def assume(self, *assumptions: str) -> None:
        self.assumptions += [text for text in assumptions if text not in self.assumptions]

    def lack(self, *names: str) -> None:
        self.missing |= {name: NEEDS[name] for name in names}


@dataclass(frozen=True, slots=True)
class Model:
    """The rates of both sides. None: unknown, because ``lacks`` (names of `NEEDS`, or texts) are missing.

    Attributes:
        now: the run's numbers, as the changes leave them.
        capacity, generated: samples/s that the trainer could take and the generator's side could make.
        bound: of ``generated``; floor: what it is at least, None where that is not known.
        lengths: tokens per response over today's.
        staleness: mean, in versions.
        engines_as_now: no engine came or went.
    """

    now: CurrentNumbers
    capacity: float | None
    generated: float | None
    bound: Bound = ""
    floor: float | None = None
    lengths: float | None = 1.0
    staleness: float | None = None
    staleness_bound: Bound = ""
    engines_as_now: bool = True
    lacks: tuple[str, ...] = ()

    @property
    def limiter(self) -> Side | None:
        if self.wait is None:
            return None
        return "trainer" if self.wait < NOISE else "generator"

    @property
    def trained(self) -> float | None:
        return None if self.capacity is None or self.generated is None else min(self.capacity, self.generated)

    @property
    def trained_bound(self) -> Bound:
        """If the trainer is the limit, the surplus of the other side does not matter."""
        if self.capacity is None or self.generated is None or self.generated < self.capacity:
            return self.bound
        sure = self.bound in ("", "at least") or (self.floor is not None and self.floor >= self.capacity)
        return "" if sure else "at most"

    @property
    def wait(self) -> float | None:
        if self.capacity is None or self.generated is None:
            return None
        return max(0.0, 1 - self.generated / self.capacity)
