"""What is this page, what is this path? For `rollscope watch` and `rollscope check`, over every collector there is."""

from pathlib import Path

from collectors import load
from collectors.formats import sqlite
from collectors.model import ScrapeError


def detect_path(path: Path) -> list[tuple[str, str]]:
    """Collectors that know this file or directory, with the reason each gives; empty when none does.

    More than one may match (a folder with the logs of two systems): reading it with each is right then.

    Raises:
        ScrapeError: ``locked``: no trainer's collector knows it, but a database in it may not be read now.
    """
    # In name order, so that the same folder gives the same answer everywhere.
    found: list[tuple[str, str]] = []
    locked: ScrapeError | None = None
    known = load()
    with sqlite.one_look():
        for name, collector in sorted(known.items()):
            try:
                reason = collector.matches_path(path) if collector.matches_path is not None else None
            except ScrapeError as error:
                locked, reason = error, None
            if reason is not None:
                found.append((name, reason))
    # What else writes there is no reason to go on without the trainer.
    if locked is not None and not any(known[name].actor == "trainer" for name, _ in found):
        raise ScrapeError("locked", f"{locked}, so whose log it is cannot be told: try again when its writer is done")
    return found


def detect_page(body: bytes) -> str | None:
    """The collector whose page this is, or None. Engines do not share names, so the first match is the only one."""
    for collector in load().values():
        if collector.matches_page is not None and collector.matches_page(body):
            return collector.name
    return None
