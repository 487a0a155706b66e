"""The age of the state that turns are played on: which policy version last (and first) changed an environment. Pure.

An environment is its sandbox. It lives on over suspended rollouts and, where it is kept, over several of them: what
each did to it is remembered (for the 50,000 sandboxes met last) in the order of their times.
"""

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from collectors.model import Rollout, Turn

SANDBOXES, EPISODES = 50_000, 16
HINT = "log `turns` with `version`, `mutated` (or `tool_calls`), `reset` and `sandbox_id` per turn"
OTHER_LIFE = "its environment was changed in another life of the trainer: versions of two lives cannot be compared"


@dataclass(frozen=True, slots=True)
class Mutations:
    """Oldest and latest policy version that changed an environment since it was made anew; None: nobody told.

    ``life``: of the trainer, -1 for several.
    """

    oldest: int | None
    latest: int | None
    life: int

    def then(self, version: int | None, life: int) -> "Mutations":
        """After one more change."""
        if version == self.latest and life == self.life and version is not None:
            return self
        if version is None or self.oldest is None:
            return Mutations(None, None, life if life == self.life else -1)
        return Mutations(min(self.oldest, version), version, life if life == self.life else -1)


State = Mutations | None
"""None: as it was made."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one rollout did to one environment: made it anew (or forked it), and what it left."""

    anew: bool
    left: State

    def on(self, before: State) -> State:
        """The state after it."""
        if self.anew or before is None:
            return self.left
        if self.left is None:
            return before
        joined = before.then(self.left.oldest, self.left.life)
        return replace(joined, latest=self.left.latest if joined.oldest is not None else None)


@dataclass(frozen=True, slots=True)
class Ages:
    """How old the state was that a rollout's turns were played on, in versions.

    Attributes:
        turns: age since the oldest mutation -> turns; latest: the sum of ages since the latest one.
        bound: nobody told which turns changed anything: every tool call counts.
        unknown: why turns could not be judged; "" when all were.
    """

    turns: dict[int, int] = field(default_factory=dict)
    latest: int = 0
    bound: bool = False
    unknown: str = ""

    @property
    def judged(self) -> int:
        return sum(self.turns.values())

    @property
    def old(self) -> int:
        """Turns on state made by an older policy."""
        return sum(count for age, count in self.turns.items() if age > 0)

    def mean(self) -> float | None:
        judged = self.judged
        return sum(age * count for age, count in self.turns.items()) / judged if judged else None


_Episode = tuple[float, str, int, Effect]


class Environments:
    """What rollouts did to the sandboxes they shared."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, list[_Episode]] = OrderedDict()

    def before(self, sandbox: str, start: float, rollout: tuple[str, int]) -> State:
        """The state in which a rollout that began at ``start`` (epoch seconds) found a sandbox."""
        state: State = None
        for begun, name, life, effect in self._of.get(sandbox, ()):
            if (begun, name, life) < (start, *rollout) and (name, life) != rollout:
                state = effect.on(state)
        return state

    def note(self, sandbox: str, start: float, rollout: tuple[str, int], effect: Effect) -> None:
        """What it did there; told again, the newer word counts."""
        found = [one for one in self._of.pop(sandbox, ()) if (one[1], one[2]) != rollout]
        insort(found, (start, *rollout, effect), key=lambda one: one[:3])
        if len(found) > EPISODES:
            (begun, name, life, first), (_, _, _, second) = found[:2]
            found[:2] = [(begun, name, life, Effect(first.anew or second.anew, second.on(first.left)))]
        self._of[sandbox] = found
        if len(self._of) > SANDBOXES:
            self._of.popitem(last=False)

    def judge(self, record: Rollout, life: int, start: float) -> Ages:
        """The ages of a rollout's turns. Its sandboxes are remembered as it left them."""
        walk = _Walk(self, record, life, start)
        for turn in record.turns:
            walk.play(turn)
        for sandbox, effect in walk.effects():
            self.note(sandbox, start, walk.rollout, effect)
        # A few turns of many would say too little: the first ones, on a state as it was made.
        return Ages(bound=walk.bound, unknown=walk.why) if walk.why else Ages(walk.turns, walk.latest, walk.bound)


class _Walk:
    """One rollout's turns, in their order."""

    def __init__(self, environments: Environments, record: Rollout, life: int, start: float) -> None:
        self._all, self._life, self._start = environments, life, start
        self.rollout = (record.rollout_id, life)
        self._own = record.sandbox_ids[0] if len(record.sandbox_ids) == 1 else ""
        self._version = _only_version(record)
        # Sandbox -> (its state, what the rollout did to it).
        self._states: dict[str, tuple[State, Effect]] = {}
        self.turns: dict[int, int] = {}
        self.latest, self.bound, self.why = 0, False, ""

    def play(self, turn: Turn) -> None:
        sandbox = turn.sandbox_id or self._own
        state, done = self._states.get(sandbox) or self._found(sandbox, turn)
        if turn.reset:
            state, done = None, Effect(anew=True, left=None)
        version = turn.version if turn.version is not None else self._version
        self._judge(state, version)
        mutated = self._mutated(turn)
        if mutated is not False:
            version = version if mutated else None
            state = _changed(state, version, self._life)
            done = Effect(done.anew, _changed(done.left, version, self._life))
        self._states[sandbox] = (state, done)

    def _found(self, sandbox: str, turn: Turn) -> tuple[State, Effect]:
        if turn.forked_from:
            known = self._states.get(turn.forked_from)
            state = known[0] if known else self._all.before(turn.forked_from, self._start, self.rollout)
            return state, Effect(anew=True, left=state)
        return (self._all.before(sandbox, self._start, self.rollout) if sandbox else None), Effect(False, None)

    def _judge(self, state: State, version: int | None) -> None:
        if state is None:
            self.turns[0] = self.turns.get(0, 0) + 1
        elif state.life != self._life:
            self.why = OTHER_LIFE
        elif version is None or state.oldest is None or state.latest is None:
            self.why = HINT
        else:
            age = version - state.oldest
            self.turns[age] = self.turns.get(age, 0) + 1
            self.latest += version - state.latest

    def _mutated(self, turn: Turn) -> bool | None:
        """None: it cannot be told."""
        if turn.mutated is not None:
            return turn.mutated
        if turn.tool_calls is None:
            return None
        self.bound = self.bound or turn.tool_calls > 0
        return turn.tool_calls > 0

    def effects(self) -> list[tuple[str, Effect]]:
        return [(sandbox, done) for sandbox, (_, done) in self._states.items() if sandbox]


def _changed(state: State, version: int | None, life: int) -> Mutations:
    return Mutations(version, version, life) if state is None else state.then(version, life)


def _only_version(record: Rollout) -> int | None:
    """The version of every turn of a rollout that only one made."""
    made = {version for version, tokens in record.token_versions if tokens > 0}
    if len(made) == 1:
        return made.pop()
    same = not made and record.version_start == record.version_finish
    return record.version_start if same else None
