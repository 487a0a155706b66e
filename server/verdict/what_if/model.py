"""Both sides of a run at once, and what is said on the way to them."""

from dataclasses import dataclass, field

from server.verdict.what_if.types import NEEDS, Bound, CurrentNumbers, Side

# Below it a wait is the noise of batches, not a generator that is too slow: then the trainer is the limit, and the
# generator's side, which is held, could make more than it does.
NOISE = 0.05
_FLIP: dict[Bound, Bound] = {"": "", "at least": "at most", "at most": "at least", "about": "about"}


def flipped(bound: Bound) -> Bound:
    """Of what falls when the other rises."""
    return _FLIP[bound]


def joined(*bounds: Bound) -> Bound:
    """The bound of a product; two that disagree leave neither."""
    found = {bound for bound in bounds if bound}
    return found.pop() if len(found) == 1 else "about" if found else ""


@dataclass(slots=True)
class Notes:
    """What was assumed and what was missing on the way."""

    assumptions: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def assume(self, *words: str) -> None:
        self.assumptions += [one for one in words if one not in self.assumptions]

    def lack(self, *names: str) -> None:
        self.missing |= {name: NEEDS[name] for name in names}


@dataclass(frozen=True, slots=True)
class Model:
    """What each side could do. None: not known, for want of ``lacks`` (names of `NEEDS`, or words).

    Attributes:
        now: the run's numbers, as the changes leave them.
        capacity, made: samples/s that the trainer could take and the generator's side could make.
        bound: of ``made``; floor: what it is at least, None where that is not known.
        lengths: tokens per response beside today's.
        staleness: mean, in versions.
        engines_as_now: no engine came or went.
    """

    now: CurrentNumbers
    capacity: float | None
    made: float | None
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
        return None if self.capacity is None or self.made is None else min(self.capacity, self.made)

    @property
    def trained_bound(self) -> Bound:
        """Where the trainer is the limit it does not matter by how much more the other side could make."""
        if self.capacity is None or self.made is None or self.made < self.capacity:
            return self.bound
        sure = self.bound in ("", "at least") or (self.floor is not None and self.floor >= self.capacity)
        return "" if sure else "at most"

    @property
    def wait(self) -> float | None:
        if self.capacity is None or self.made is None:
            return None
        return max(0.0, 1 - self.made / self.capacity)
