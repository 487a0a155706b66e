"""A string that does not print itself: tokens, keys, URLs with credentials."""


class Secret(str):
    """A string that does not print itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')"


NO_SECRET = Secret("")
