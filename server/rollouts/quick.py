"""Frozen dataclasses made as fast as others: thousands a second of forty fields each are what taking records costs.

The `__init__` of a frozen dataclass calls `object.__setattr__` for every field: of a rollout's 36 that is 9 us, where
plain assignments take 0.6. Here an instance is filled as one of a plain class with the same slots, and then becomes
one of the frozen class: what is made is the same, and as frozen.
"""

from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


def maker(made: type[_T]) -> Callable[..., _T]:
    """Makes instances of a frozen dataclass with slots from the values of all its fields, by place. No default is
    filled in.

    Raises:
        TypeError: it does more at its beginning than to take its fields.
    """
    if hasattr(made, "__post_init__") or "__slots__" not in vars(made):
        raise TypeError(f"{made.__name__} is more than its slots")
    names: tuple[str, ...] = vars(made)["__slots__"]
    plain: Any = make_dataclass(f"Plain{made.__name__}", [(name, Any) for name in names], slots=True)

    def make(*values: Any) -> _T:
        found = plain(*values)
        found.__class__ = made
        return found  # type: ignore[no-any-return]

    return make
