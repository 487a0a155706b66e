"""A string type for tokens, keys and URLs with credentials, whose `repr` hides the value."""


class Secret(str):
    """A string whose `repr` hides the value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')"


NO_SECRET = Secret("")
