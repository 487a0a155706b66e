"""The age of the state that turns are played on: which policy version last (and first) changed an environment. Pure.

An environment is its sandbox. It outlives suspended rollouts and may be used by several rollouts: their changes
are cached in the order of their times, for the 50,000 most recent sandboxes.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import Struct

from collectors.model import Rollout, Turn

# Sandboxes whose changes are cached, the most recent ones.
SANDBOXES = 50_000
# Changes cached per sandbox.
EPISODES = 16
# Rollouts whose turns are cached, to be evaluated again when an older change is reported.
REMEMBERED = 1_000
# Cached results for rollouts without a sandbox: thousands have equal turns.
ALIKE = 4096
# Longest list of turns that is cached.
ALIKE_TURNS = 16
HINT = "log `turns` with `version`, `mutated` (or `tool_calls`), `reset` and `sandbox_id` per turn"
FORGOTTEN = "its sandbox was used before Rollscope started, by a rollout whose turns are not stored"
OTHER_LIFE = "its environment was changed in another incarnation of the trainer, whose versions cannot be compared"


@dataclass(frozen=True, slots=True)
class Mutations:
    """Oldest and latest policy version that changed an environment since it was created; None: not reported.

    ``life``: trainer incarnation, -1 for several; ``lost``: it was reported, but is no longer cached.
    """

    oldest: int | None
    latest: int | None
    life: int
    lost: bool = False

    def then(self, version: int | None, life: int) -> "Mutations":
        """After one more change."""
        if version == self.latest and life == self.life and version is not None:
            return self
        if version is None or self.oldest is None:
            return Mutations(None, None, life if life == self.life else -1, self.lost)
        return Mutations(min(self.oldest, version), version, life if life == self.life else -1)


State = Mutations | None
"""None: as it was made."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one rollout did to one environment: created (or forked) it, and the state that it left."""

    anew: bool
    left: State

    def on(self, before: State) -> State:
        """The state after it."""
        if self.anew or before is None:
            return self.left
        if self.left is None:
            return before
        joined = before.then(self.left.oldest, self.left.life)
        latest = self.left.latest if joined.oldest is not None else None
        return replace(joined, latest=latest, lost=joined.lost or self.left.lost)


class Ages(Struct, frozen=True):
    """How old the state was that a rollout's turns were played on, in versions.

    Attributes:
        turns: age since the oldest mutation -> turns; latest: the sum of ages since the latest one.
        bound: an upper bound: no source reports which turns changed anything, so every tool call counts.
        unknown: why turns could not be judged; "" when all were.
    """

    turns: dict[int, int] = {}
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


Key = tuple[str, int]
"""(rollout id, trainer incarnation)."""

_When = tuple[float, int, int, str]
"""(start in epoch seconds, incarnation, oldest acting version or -1, rollout id): the order of changes."""

_Episode = tuple[_When, Effect]


def start(record: Rollout, first_seen: float) -> float:
    """When it began to change anything, epoch seconds; ``first_seen``: used if the record has no time."""
    times = [at for at in (record.started_at, record.dispatched_at, record.first_token_at) if at is not None]
    return min(times) if times else first_seen


def when(record: Rollout, life: int, begun: float) -> _When:
    """Its place among others: by time, then by version."""
    acted = {turn.version for turn in record.turns} or {None}
    if None not in acted:
        return begun, life, min(acted), record.rollout_id  # type: ignore[type-var, return-value]
    versions = [version for one in acted if (version := _only_version(record) if one is None else one) is not None]
    return begun, life, min(versions, default=-1), record.rollout_id


def basis(record: Rollout) -> tuple[object, ...]:
    """The fields of a record that determine the ages of its turns, apart from changes by other rollouts."""
    own = any(not turn.sandbox_id for turn in record.turns)
    version = any(turn.version is None for turn in record.turns)
    return record.turns, start(record, -1.0), own and _own(record), version and _only_version(record)


def sandboxes(record: Rollout) -> dict[str, None]:
    """The environments of its turns, or those they were forked from, as far as cached."""
    if not record.turns:
        return dict.fromkeys(record.sandbox_ids if record.turn_count else ())
    named = [box for turn in record.turns for box in (turn.sandbox_id, turn.forked_from) if box]
    return dict.fromkeys([*named, own] if (own := _own(record)) else named)


def _nowhere(record: Rollout, life: int) -> tuple[object, ...] | None:
    """All that the ages of its few turns follow from, where they were played in no sandbox."""
    turns = record.turns
    if record.sandbox_ids or len(turns) > ALIKE_TURNS or any([one.sandbox_id or one.forked_from for one in turns]):
        return None
    only = _only_version(record) if any([one.version is None for one in turns]) else None
    return life, only, *[(one.version, one.tool_calls, one.mutated, one.reset) for one in turns]


def _own(record: Rollout) -> str:
    return record.sandbox_ids[0] if len(record.sandbox_ids) == 1 else ""


class Environments:
    """What rollouts did to the sandboxes they shared."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, list[_Episode]] = OrderedDict()
        self._turns: OrderedDict[Key, tuple[Turn, ...]] = OrderedDict()
        # Rollouts to evaluate again: a later report changed the state of their sandbox.
        self._changed: dict[Key, None] = {}
        # Rollouts without a sandbox, whose ages depend only on their own turns.
        self._alike: dict[tuple[object, ...], Ages] = {}

    def __contains__(self, sandbox: str) -> bool:
        return sandbox in self._of

    def after(self, sandbox: str, start: float) -> list[Key]:
        """Rollouts in it that began no earlier, as far as cached."""
        return [_key(at) for at, _ in self._of.get(sandbox, ()) if at[0] >= start]

    def changed(self) -> Key | None:
        """The next rollout to evaluate again because other changes were reported later."""
        return next(iter(self._changed), None)

    def taken(self, rollout: Key) -> bool:
        """Is it to be judged again? It is, by who asks."""
        return self._changed.pop(rollout, self) is None

    def turns(self, rollout: Key) -> tuple[Turn, ...]:
        """Its turns, as far as cached."""
        return self._turns.get(rollout, ())

    def before(self, sandbox: str, at: _When) -> State:
        """The state in which a rollout found a sandbox."""
        state: State = None
        for done_at, effect in self._of.get(sandbox, ()):
            if done_at < at and _key(done_at) != _key(at):
                state = effect.on(state)
        return state

    def note(self, sandbox: str, at: _When, effect: Effect) -> None:
        """Records what a rollout did there; a newer report replaces it. Affected rollouts are marked for evaluation."""
        entries = self._of.pop(sandbox, [])
        found = [one for one in entries if _key(one[0]) != _key(at)]
        insort(found, (at, effect), key=lambda one: one[0])
        if found[-1][0] != at or (len(entries) == len(found) and entries[-1][0] != at):
            old = _states(entries)
            for key, state in _states(found).items():
                if key != _key(at) and state != old[key]:
                    self._changed[key] = None
        if len(found) > EPISODES:
            (first_at, first), (_, second) = found[:2]
            found[:2] = [(first_at, Effect(first.anew or second.anew, second.on(first.left)))]
        self._of[sandbox] = found
        if len(self._of) > SANDBOXES:
            self._of.popitem(last=False)

    def judge(self, record: Rollout, life: int, start: float) -> Ages:
        """The ages of a rollout's turns, that began then. Its sandboxes are remembered as it left them."""
        if (alike := _nowhere(record, life)) is not None and alike in self._alike:
            return self._alike[alike]
        walk = _Walk(self, record, life, start)
        for turn in record.turns:
            walk.play(turn)
        for sandbox, effect in walk.effects():
            self.note(sandbox, walk.at, effect)
            self.remember((record.rollout_id, life), record.turns)
        # A few turns of many are not representative: the first ones ran on a fresh state.
        found = Ages(bound=walk.bound, unknown=walk.why) if walk.why else Ages(walk.turns, walk.latest, walk.bound)
        if alike is not None:
            if len(self._alike) >= ALIKE:
                self._alike.clear()
            self._alike[alike] = found
        return found

    def revisit(self, record: Rollout, life: int, start: float) -> None:
        """What a rollout of the store did, that was judged before our start; of most the turns are not kept."""
        if record.turns:
            self.judge(record, life, start)
        elif record.turn_count:
            self._lose(record, life, start)
        self._changed.clear()

    def moved(self, record: Rollout, life: int, start: float) -> bool:
        """For a rollout without cached turns whose start is reported late: whether others used its sandboxes.

        Then its and their ages may have been computed for a wrong state.
        """
        self._lose(record, life, start)
        return any(len(self._of[sandbox]) > 1 for sandbox in record.sandbox_ids)

    def _lose(self, record: Rollout, life: int, start: float) -> None:
        for sandbox in record.sandbox_ids:
            self.note(sandbox, when(record, life, start), Effect(False, Mutations(None, None, life, lost=True)))

    def remember(self, rollout: Key, turns: tuple[Turn, ...]) -> None:
        """Its turns, should it be judged again."""
        self._turns.pop(rollout, None)
        self._turns[rollout] = turns
        if len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)


def _key(at: _When) -> Key:
    return at[3], at[1]


def _states(episodes: Iterable[_Episode]) -> dict[Key, State]:
    """As each of them found the sandbox."""
    state: State = None
    found: dict[Key, State] = {}
    for at, effect in episodes:
        found[_key(at)] = state
        state = effect.on(state)
    return found


class _Walk:
    """One rollout's turns, in their order."""

    def __init__(self, environments: Environments, record: Rollout, life: int, start: float) -> None:
        self._all, self._life, self._own = environments, life, _own(record)
        self._version, self.at = _only_version(record), when(record, life, start)
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
            untouched = (self._all.before(turn.forked_from, self.at), Effect(False, None))
            # Recorded there, too: an older change of the origin, reported later, also changes the fork.
            state, _ = self._states.setdefault(turn.forked_from, untouched)
            return state, Effect(anew=True, left=state)
        return (self._all.before(sandbox, self.at) if sandbox else None), Effect(False, None)

    def _judge(self, state: State, version: int | None) -> None:
        if state is None:
            self.turns[0] = self.turns.get(0, 0) + 1
        elif state.lost:
            self.why = FORGOTTEN
        elif state.life != self._life:
            self.why = OTHER_LIFE
        elif version is None or state.oldest is None or state.latest is None:
            self.why = HINT
        else:
            age = version - state.oldest
            self.turns[age] = self.turns.get(age, 0) + 1
            self.latest += version - state.latest

    def _mutated(self, turn: Turn) -> bool | None:
        """None: it cannot be determined."""
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
        return next(iter(made))
    same = not made and record.version_start == record.version_finish
    return record.version_start if same else None
