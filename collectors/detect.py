"""What is this page, what is this path? For `rollscope watch` and `rollscope check`, over every collector there is."""

from pathlib import Path

from collectors import load


def detect_path(path: Path) -> list[tuple[str, str]]:
    """Collectors that know this file or directory, with the reason each gives; empty when none does.

    More than one may match (a folder with the logs of two systems): reading it with each is right then.
    """
    # In name order, so that the same folder gives the same answer everywhere.
    found = []
    for _, collector in sorted(load().items()):
        reason = collector.matches_path(path) if collector.matches_path is not None else None
        if reason is not None:
            found.append((collector.name, reason))
    return found


def detect_page(body: bytes) -> str | None:
    """The collector whose page this is, or None. Engines do not share names, so the first match is the only one."""
    for collector in load().values():
        if collector.matches_page is not None and collector.matches_page(body):
            return collector.name
    return None
