"""Detects the collector of a page or a path, for `rollscope watch` and `rollscope check`."""

from pathlib import Path

from collectors import load
from collectors.formats import sqlite
from collectors.model import ScrapeError


def detect_path(path: Path) -> list[tuple[str, str]]:
    """Collectors that recognise this file or directory, with the reason of each; empty if none does.

    Several may match (a folder with the logs of two systems); then each of them reads it.

    Raises:
        ScrapeError: ``locked``: no trainer's collector recognises it, and a database in it cannot be read now.
    """
    # In name order, so that the same folder gives the same result on every machine.
    matches: list[tuple[str, str]] = []
    locked: ScrapeError | None = None
    collectors = load()
    with sqlite.single_lock_wait():
        for name, collector in sorted(collectors.items()):
            try:
                reason = collector.matches_path(path) if collector.matches_path is not None else None
            except ScrapeError as error:
                locked, reason = error, None
            if reason is not None:
                matches.append((name, reason))
    # Collectors of other actors do not replace the trainer's.
    if locked is not None and not any(collectors[name].actor == "trainer" for name, _ in matches):
        raise ScrapeError(
            "locked", f"{locked}, so the framework cannot be detected; try again when its writer has finished"
        )
    return matches


def detect_page(body: bytes) -> str | None:
    """The collector of this page, or None. Engines do not share names, so the first match is the only one."""
    for collector in load().values():
        if collector.matches_page is not None and collector.matches_page(body):
            return collector.name
    return None
