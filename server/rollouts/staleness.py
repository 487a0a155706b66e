"""How stale a rollout was when it was trained on, at three levels, in policy versions. One rule each; pure.

Trajectory: the version just before the first update that uses it - the oldest version that produced one of its kept
tokens. Token: the mean of that over its loss tokens. Environment state: see `environments`. What is not reported is
unknown and says what to log; versions of two lives of a trainer are never compared, nor clamped.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from collectors.model import Consumption, Rollout
from server.rollouts.environments import HINT as ENVIRONMENT_HINT
from server.rollouts.environments import Ages, Environments
from server.rollouts.groups import finish

# ---- versions
# Publication times of policy versions, from which ages are computed.

KEPT_VERSIONS = 10_000


class VersionClock:
    """Published versions with their times (epoch seconds). A lower version begins a new incarnation."""

    def __init__(self) -> None:
        self._told: list[tuple[float, int]] = []

    def publish(self, version: int, ts: float) -> None:
        """A version reported again (by the trainer, by an engine) was published at its first report."""
        at = bisect_left(self._told, (ts, version))
        if at and self._told[at - 1][1] == version:
            return
        if at < len(self._told) and self._told[at][1] == version:
            del self._told[at]
        insort(self._told, (ts, version))
        if len(self._told) > KEPT_VERSIONS:
            del self._told[0]

    def at(self, ts: float | None) -> int | None:
        """The version that was the newest at ``ts``; None before the first that is known."""
        place = 0 if ts is None else bisect_right(self._told, (ts, 1 << 62))
        return self._told[place - 1][1] if place else None

    def per_second(self, start: float, end: float) -> float | None:
        """Publications per second, from the first to the last within [start, end]; None for fewer than two."""
        times = self._told[bisect_left(self._told, (start, -(1 << 62))) : bisect_right(self._told, (end, 1 << 62))]
        if len(times) < 2 or times[-1][0] <= times[0][0]:
            return None
        return (len(times) - 1) / (times[-1][0] - times[0][0])

    def within(self, start: float, end: float) -> list[tuple[float, int]]:
        """(time, version) published within [start, end]."""
        return [(ts, version) for ts, version in self._told if start <= ts <= end]


ORIGIN_HINT = "log `token_versions` ([[version, loss tokens], ...]) or `version_start`"
CONSUMED_HINT = "log `version_consumed`, the policy version just before the first update that uses the rollout"
TOKEN_HINT = "log `token_versions` ([[version, loss tokens], ...]): more than one policy version generated it"
FINISH_HINT = "log `version_finish` or `token_versions`: whether one policy version generated all of it is not reported"
BACKWARDS = (
    "used at an older policy version than the one that generated it: log `incarnation` after a restart from a "
    "checkpoint; otherwise the two versions are counted differently"
)
OTHER_LIFE = "generated and trained in two incarnations of the trainer (a restart), whose versions cannot be compared"
TRAJECTORY = "trajectory"
TOKEN = "token"
ENVIRONMENT = "environment_state"


class Judged(Struct, frozen=True, gc=False):
    """What follows from a record: the fields of a row of the store. Versions, but for counts of turns.

    ``ages``: turns by the age of their state, "versions:turns". ``unknown``: "level: what to log; ...".
    """

    staleness: int | None = None
    in_flight: int | None = None
    in_group: int | None = None
    in_queue: int | None = None
    token_staleness: float | None = None
    environment_staleness: float | None = None
    environment_latest: float | None = None
    environment_bound: bool = False
    old_state_turns: int | None = None
    judged_turns: int | None = None
    environment_ages: str = ""
    mixed: bool | None = None
    unknown: str = ""


class Use(Struct, frozen=True, gc=False):
    """One consumption as windows count it: ``staleness`` None where it is not known."""

    version: int | None
    life: int
    at: float | None
    staleness: int | None


def oldest(record: Rollout) -> int | None:
    """The oldest policy version that produced one of its kept tokens."""
    versions = [version for version, tokens in record.token_versions if tokens > 0]
    if versions:
        return min(versions)
    return record.version_start if record.version_start is not None else record.version_dispatched


def made_by(record: Rollout) -> tuple[tuple[int, int], ...]:
    """(version, tokens) of every version that generated it; () if several did and the split is not reported."""
    pairs = tuple([pair for pair in record.token_versions if pair[1] > 0])
    if pairs or record.version_start is None or record.version_start != record.version_finish:
        return pairs
    return ((record.version_start, record.loss_tokens or record.response_tokens or 1),)


def mixed(record: Rollout) -> bool | None:
    """Did more than one version make it?"""
    versions = {version for version, tokens in record.token_versions if tokens > 0}
    if versions:
        return len(versions) > 1
    if record.version_start is not None and record.version_finish is not None:
        return record.version_start != record.version_finish
    acted = {turn.version for turn in record.turns}
    return None if not acted or None in acted else len(acted) > 1


def uses(record: Rollout, life: int) -> Iterator[Use]:
    """Every consumption: a replayed rollout counts at each."""
    origin = oldest(record)
    for use in record.consumptions:
        own = use.incarnation is None or use.incarnation == life
        is_comparable = own and origin is not None and use.version is not None and use.version >= origin
        consumed_in = life if use.incarnation is None else use.incarnation
        yield Use(use.version, consumed_in, use.at, use.version - origin if is_comparable else None)  # type: ignore[operator]


def newest_use(record: Rollout) -> Consumption | None:
    """The consumption that its row speaks of."""
    uses = record.consumptions
    return max(uses, key=_order) if len(uses) > 1 else uses[0] if uses else None


def _order(use: Consumption) -> tuple[int, int, float]:
    """Orders by incarnation, version and time; absent values come first."""
    return (
        -1 if use.incarnation is None else use.incarnation,
        -1 if use.version is None else use.version,
        -1.0 if use.at is None else use.at,
    )


def judge(
    record: Rollout, life: int, clock: VersionClock, ages: Ages | None = None, *, alone: bool = True,
    group_version: int | None = None, group_at: float | None = None,
) -> Judged:  # fmt: skip
    """Everything that follows from a record, at its newest consumption.

    Args:
        life: trainer incarnation in which it was generated.
        ages: of its turns' environment states (`Environments.judge`); None if no turns are reported.
        alone: it has no siblings to wait for.
        group_version: the version when its group was complete, from the siblings; else from the clock.
        group_at: when that was, epoch seconds.
    """
    use = newest_use(record)
    own = use is None or use.incarnation is None or use.incarnation == life
    origin, words = oldest(record), []
    back = use is not None and use.version is not None and origin is not None and use.version < origin
    consumed = use.version if use is not None and own and not back else None
    whole = consumed - origin if consumed is not None and origin is not None else None
    if use is not None and whole is None:
        words.append(f"{TRAJECTORY}: {BACKWARDS if own and back else _why(use, own, origin)}")
    token = _token(record, consumed)
    if use is not None and token is None:
        gap = consumed is None or origin is None
        hint = FINISH_HINT if record.version_finish is None and not record.token_versions else TOKEN_HINT
        words.append(f"{TOKEN}: {BACKWARDS if own and back else _why(use, own, origin) if gap else hint}")
    valid = ages if ages is not None and not ages.unknown else None
    if record.consumptions and valid is None:
        words.append(f"{ENVIRONMENT}: {ages.unknown if ages is not None else ENVIRONMENT_HINT}")
    parts = _parts(record, clock, origin, whole, alone, group_version, group_at)
    judged = valid.judged if valid is not None else None
    return Judged(
        whole, *parts, token,
        valid.mean() if valid is not None else None, valid.latest / judged if valid is not None and judged else None,
        ages.bound if ages is not None else False, valid.old if valid is not None else None, judged,
        ages_text(valid), mixed(record), "; ".join(words),
    )  # fmt: skip


def _why(use: Consumption, own: bool, origin: int | None) -> str:
    if not own:
        return OTHER_LIFE
    return CONSUMED_HINT if use.version is None else ORIGIN_HINT if origin is None else TOKEN_HINT


def _token(record: Rollout, consumed: int | None) -> float | None:
    made = made_by(record)
    if consumed is None or not made:
        return None
    return sum([(consumed - version) * tokens for version, tokens in made]) / sum([tokens for _, tokens in made])


def _parts(
    record: Rollout,
    clock: VersionClock,
    origin: int | None,
    whole: int | None,
    alone: bool,
    group_version: int | None,
    group_at: float | None,
) -> tuple[int | None, int | None, int | None]:
    """(in flight, in its group, in the queue); the rest is the queue's."""
    end = finish(record)
    if end is None:
        end = clock.at(record.finished_at)
    if origin is None or end is None:
        return None, None, None
    in_group = _waited(record, clock, end, alone, group_version, group_at)
    flight = end - origin
    return flight, in_group, None if whole is None or in_group is None else whole - flight - in_group


def _waited(
    record: Rollout, clock: VersionClock, end: int, alone: bool, group_version: int | None, group_at: float | None
) -> int | None:
    """Versions that were published while it waited for its siblings.

    By the clock where it knows both ends: an engine that was not updated yet makes last tokens that are behind, and
    that is no waiting.
    """
    at = record.group_complete_at if record.group_complete_at is not None else group_at
    told, own = (clock.at(at), clock.at(record.finished_at)) if at is not None and not alone else (None, None)
    if told is not None and own is not None:
        return max(0, told - own)
    complete = clock.at(record.group_complete_at) if record.group_complete_at is not None else None
    if complete is None:
        complete = end if alone else group_version
    return None if complete is None else max(0, complete - end)


# ---- ages as a row keeps them

_MOST_AGES = 60


def ages_text(ages: Ages | None) -> str:
    """Turns by the age of their state, ascending; of more than sixty ages the oldest are taken together."""
    pairs = sorted(ages.turns.items()) if ages is not None else []
    if len(pairs) > _MOST_AGES:
        pairs[_MOST_AGES - 1 :] = [(pairs[_MOST_AGES - 1][0], sum(count for _, count in pairs[_MOST_AGES - 1 :]))]
    return " ".join(f"{age}:{count}" for age, count in pairs)


def ages_of(text: str) -> list[tuple[int, int]]:
    """The reverse of `ages_text`."""
    return [*_ages_of(text)]


@lru_cache(maxsize=4096)  # thousands of rollouts have had the same turns
def _ages_of(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.rpartition(":") for pair in text.split())
    return tuple((int(age), int(count)) for age, _, count in pairs)


__all__ = ["Environments", "Judged", "Use", "judge", "uses"]
