"""Frozen dataclasses made fast are what they would have been: equal, hashable, frozen."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass

import pytest

from collectors.model import Consumption, Turn
from server.rollouts.merge import maker


def test_what_is_made_fast_is_the_same_and_as_frozen() -> None:
    made = maker(Turn)(7, 2, True, False, "box", "")
    assert made == Turn(7, 2, True, False, "box") and type(made) is Turn
    assert hash(made) == hash(Turn(7, 2, True, False, "box"))
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(FrozenInstanceError):
        made.version = 8  # type: ignore[misc]


def test_no_default_is_filled_in() -> None:
    assert maker(Consumption)(3, None, None) == Consumption(3)
    with pytest.raises(TypeError):
        maker(Consumption)(3)


@dataclass(frozen=True)
class _Loose:
    one: int


@dataclass(frozen=True, slots=True)
class _Checked:
    one: int

    def __post_init__(self) -> None:
        assert self.one > 0


@pytest.mark.parametrize("kind", [_Loose, _Checked])
def test_what_is_more_than_its_slots_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="more than its slots"):
        maker(kind)
