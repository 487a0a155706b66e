"""What the adapters of step files share: the verb `tail`, and numbers of whatever type a row has."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from collectors.model import Cursor, Limits, Reading, ScrapeError
from collectors.readers.shapes import whole
from collectors.rollouts._files import Look, Part, StepFile, follow

HEAD_BYTES = 512


def tail_of(
    find: Callable[[Path], list[StepFile]], read: Callable[[Look], Part], looked_for: str,
    path: Path, cursor: Cursor, limits: Limits, now: float, *, appended: bool = False,
) -> Reading:  # fmt: skip
    """New rollouts in the files that ``find`` lists.

    Raises:
        ScrapeError: ``not_a_run`` when there are none and never were, ``missing`` when the path cannot be read.
    """
    try:
        files = find(path)
        if not files and not cursor:
            path.stat()
            raise ScrapeError("not_a_run", f"no rollouts in {path.name}: looked for {looked_for}")
        return follow(files, cursor, limits, now, read, appended=appended)
    except OSError as error:
        raise ScrapeError("missing", f"{path.name[:100]} cannot be read: {type(error).__name__}") from None


def first_of(find: Callable[[Path], list[StepFile]], path: Path) -> StepFile | None:
    """The first file there is, for `matches_path`."""
    try:
        return next(iter(find(path)), None)
    except OSError:
        return None


def begins(path: Path, head: re.Pattern[bytes]) -> bool:
    """Does the file begin like this? One that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return head.match(file.read(HEAD_BYTES)) is not None
    except OSError:
        return False


def count(values: Iterable[object]) -> int | None:
    """The sum, None when one of them is not told."""
    found = [whole(value) for value in values]
    told = [value for value in found if value is not None]
    return sum(told) if len(told) == len(found) and found else None
