"""Validates single values of pushed records. Each check takes the field's name and the value. Pure."""

from collections.abc import Callable
from typing import Any

from server.ingest.validation import COUNTED, FIRST_TIME

# Most turns of a rollout.
TURNS = 10_000
# Most sandboxes of a rollout.
BOXES = 1_000
# Longest id, characters.
ID_LENGTH = 200
# Longest displayed text, characters.
TEXT_LENGTH = 200
# Largest integer that a float represents exactly; every database accepts it.
MOST = 2**53
# Largest incarnation. A larger number is a time or a hash, and every later incarnation would look older.
LARGEST_INCARNATION = 2**31 - 1


def whole(name: str, value: Any) -> int:
    """Validates a count or version: a whole number from 0 to the field's limit."""
    limit = COUNTED.get(name, MOST)
    if type(value) is int and 0 <= value <= limit:
        return value
    if isinstance(value, float) and 0 <= value <= limit and value.is_integer():
        return int(value)  # pandas turns a column with missing values into floats
    if type(value) in (int, float) and value > limit and name in COUNTED:
        raise ValueError(f"{name} must be a whole number up to {limit}")
    raise ValueError(f"{name} must be a whole number from 0 on")


def positive(name: str, value: Any) -> int:
    """Validates a size: a whole number from 1 on."""
    if (number := whole(name, value)) < 1:
        raise ValueError(f"{name} must be a whole number from 1 on")
    return number


def incarnation(name: str, value: Any) -> int:
    """Validates an incarnation number of the trainer."""
    if (number := whole(name, value)) > LARGEST_INCARNATION:
        raise ValueError(f"{name} must be a whole number up to {LARGEST_INCARNATION}")
    return number


def number(name: str, value: Any) -> float:
    """Validates a finite number."""
    # Compared, not converted, because an integer of hundreds of digits fits no float. A comparison with NaN is false.
    if type(value) not in (int, float) or not abs(value) <= 1e300:
        raise ValueError(f"{name} must be a finite number")
    return float(value)


def truth(name: str, value: Any) -> bool:
    """Validates a boolean; 1 and 0 are refused."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def cleaned(name: str, value: Any) -> str:
    """Returns a text of any length without characters that a database refuses."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    # No database accepts a NUL or half a surrogate pair.
    return value if value.isprintable() else value.replace("\0", "").encode(errors="replace").decode()


def text(name: str, value: Any) -> str:
    """Returns a displayed text, cut to `TEXT_LENGTH`."""
    return cleaned(name, value)[:TEXT_LENGTH]


def identity(name: str, value: Any) -> str:
    """Validates an identifier. A long one is refused, because two identifiers could be cut to the same text."""
    text = cleaned(name, value)
    if len(text) > ID_LENGTH:
        raise ValueError(f"{name} is longer than {ID_LENGTH} characters")
    return text


def one_of(*values: str) -> Callable[[str, Any], str]:
    """Returns a check that accepts one of the values."""

    def check(name: str, value: Any) -> str:
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}")
        return str(value)

    return check


def moment(name: str, value: Any, latest: float) -> float:
    """Validates a time in epoch seconds up to ``latest``, rounded to milliseconds."""
    if type(value) not in (int, float) or not FIRST_TIME <= value <= latest:
        raise ValueError(f"{name} must be epoch seconds, from 2000 on and less than a day ahead")
    milliseconds: int = round(value * 1000)
    return milliseconds / 1000  # the store's resolution


def listed(name: str, value: Any, limit: int) -> list[Any]:
    """Validates a list of at most ``most`` items."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    if len(value) > limit:
        raise ValueError(f"{name} may have at most {limit} items")
    return value


def pairs(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Validates [[version, tokens], ...]."""
    entries = listed(name, value, TURNS)
    for pair in entries:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{name} must be a list of [version, loss tokens]")
    return tuple([(whole(name, version), whole(f"{name}: loss tokens", tokens)) for version, tokens in entries])


def boxes(name: str, value: Any) -> tuple[str, ...]:
    """Validates a list of sandbox ids."""
    return tuple(identity(name, entry) for entry in listed(name, value, BOXES))
