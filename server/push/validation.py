"""Values of pushed records, checked: each takes a field's name and what was sent; ValueError in words. Pure."""

from collections.abc import Callable
from typing import Any

from server.ingest.validation import COUNTED, FIRST_TIME

TURNS, BOXES = 10_000, 1_000
ID_LENGTH, TEXT_LENGTH = 200, 200
# What a float holds exactly, and every database takes.
MOST = 2**53
# A restart counts one more: what is beyond this is a time or a hash, and every later life would be an older one.
LIVES_MOST = 2**31 - 1


def whole(name: str, value: Any) -> int:
    """A count, a version: from 0 on, and a count no more than can be meant."""
    most = COUNTED.get(name, MOST)
    if type(value) is int and 0 <= value <= most:
        return value
    if isinstance(value, float) and 0 <= value <= most and value.is_integer():
        return int(value)  # what pandas makes of a column with holes
    if type(value) in (int, float) and value > most and name in COUNTED:
        raise ValueError(f"{name} must be a whole number up to {most}")
    raise ValueError(f"{name} must be a whole number from 0 on")


def positive(name: str, value: Any) -> int:
    """A size: from 1 on."""
    if (found := whole(name, value)) < 1:
        raise ValueError(f"{name} must be a whole number from 1 on")
    return found


def life(name: str, value: Any) -> int:
    """A life of the trainer, as restarts count them."""
    if (found := whole(name, value)) > LIVES_MOST:
        raise ValueError(f"{name} must be a whole number up to {LIVES_MOST}")
    return found


def number(name: str, value: Any) -> float:
    """Any finite number."""
    # Compared, not converted: a whole number of hundreds of digits fits no float. NaN is below nothing.
    if type(value) not in (int, float) or not abs(value) <= 1e300:
        raise ValueError(f"{name} must be a finite number")
    return float(value)


def truth(name: str, value: Any) -> bool:
    """True or false, and no 1 or 0."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def cleaned(name: str, value: Any) -> str:
    """A text of any length, as every database takes it."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    # No database takes a NUL or half a surrogate pair.
    return value if value.isprintable() else value.replace("\0", "").encode(errors="replace").decode()


def text(name: str, value: Any) -> str:
    """A text that is shown: cut where it is longer than anybody reads."""
    return cleaned(name, value)[:TEXT_LENGTH]


def identity(name: str, value: Any) -> str:
    """A text that tells one thing from another: one that is too long is refused, for two might be cut to the same."""
    found = cleaned(name, value)
    if len(found) > ID_LENGTH:
        raise ValueError(f"{name} is longer than {ID_LENGTH} characters")
    return found


def one_of(*words: str) -> Callable[[str, Any], str]:
    """A check for one of the words."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(words)}")
        return str(value)

    return check


def moment(name: str, value: Any, latest: float) -> float:
    """Epoch seconds up to ``latest``, to the millisecond."""
    if type(value) not in (int, float) or not FIRST_TIME <= value <= latest:
        raise ValueError(f"{name} must be epoch seconds, from 2000 on and less than a day ahead")
    milliseconds: int = round(value * 1000)
    return milliseconds / 1000  # as the store keeps it


def listed(name: str, value: Any, most: int) -> list[Any]:
    """A list of at most so many."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    if len(value) > most:
        raise ValueError(f"{name} may hold {most}")
    return value


def pairs(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """[[version, tokens], ...]."""
    found = listed(name, value, TURNS)
    for pair in found:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{name} must be a list of [version, loss tokens]")
    return tuple([(whole(name, version), whole(f"{name}: loss tokens", tokens)) for version, tokens in found])


def boxes(name: str, value: Any) -> tuple[str, ...]:
    """Ids of sandboxes."""
    return tuple(identity(name, one) for one in listed(name, value, BOXES))
