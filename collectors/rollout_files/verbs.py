"""Verbs shared by the collectors of step files, and conversions of numbers in rows."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from collectors.formats import parquet
from collectors.formats.shapes import whole
from collectors.model import Cursor, Limits, Reading, ScrapeError
from collectors.rollout_files.step_files import FilePart, ReadRequest, StepFile, follow

HEAD_BYTES = 512

Tail = Callable[[Path, Cursor, Limits, float], Reading]


def tail_of(
    find: Callable[[Path], list[StepFile]], read: Callable[[ReadRequest], FilePart], looked_for: str,
    path: Path, cursor: Cursor, limits: Limits, now: float, *, appended: bool = False,
) -> Reading:  # fmt: skip
    """New rollouts in the files that ``find`` lists.

    Raises:
        ScrapeError: ``not_a_run`` if there are none and never were, ``missing`` if the path cannot be read.
    """
    try:
        files = find(path)
        if not files and not cursor:
            path.stat()
            raise ScrapeError("not_a_run", f"no rollouts in {path.name}: looked for {looked_for}")
        return follow(files, cursor, limits, now, read, appended=appended)
    except OSError as error:
        raise ScrapeError("missing", f"{path.name[:100]} cannot be read: {type(error).__name__}") from None


def verbs_of(
    find: Callable[[Path], list[StepFile]], read: Callable[[ReadRequest], FilePart], looked_for: str, reason: str, *,
    appended: bool = False,
) -> tuple[Tail, Callable[[Path], str | None]]:  # fmt: skip
    """`tail` and `matches_path` of a format that is nothing but files of steps. ``said``: the reason, {} its file."""

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        return tail_of(find, read, looked_for, path, cursor, limits, now, appended=appended)

    def matches_path(path: Path) -> str | None:
        first_file = first_of(find, path)
        return reason.format(first_file.name) if first_file is not None else None

    return tail, matches_path


def with_parquet(find: Callable[[Path], list[StepFile]]) -> Callable[[Path], list[StepFile]]:
    """The same, with an error (``missing``) if there are files but pyarrow is not installed."""

    def find_checked(path: Path) -> list[StepFile]:
        files = find(path)
        if files and not parquet.installed():
            raise ScrapeError("missing", parquet.INSTALL)
        return files

    return find_checked


def first_of(find: Callable[[Path], list[StepFile]], path: Path) -> StepFile | None:
    """The first file, for `matches_path`."""
    try:
        return next(iter(find(path)), None)
    except OSError:
        return None


def begins(path: Path, head: re.Pattern[bytes]) -> bool:
    """Returns whether the file begins like this; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return head.match(file.read(HEAD_BYTES)) is not None
    except OSError:
        return False


def count(values: Iterable[object]) -> int | None:
    """The sum; None if a value is absent."""
    counts = [whole(value) for value in values]
    valid_counts = [value for value in counts if value is not None]
    return sum(valid_counts) if len(valid_counts) == len(counts) and counts else None
