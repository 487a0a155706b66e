"""What the site generator does not check by itself: pages that no menu entry leads to."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def menu() -> list[str]:
    """Every page of the menu in `zensical.toml`, in its order."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    return list(_pages(settings["project"]["nav"]))


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from _pages(target)


def orphans() -> list[str]:
    """Pages below `docs` that are not in the menu."""
    found = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return sorted(found - set(menu()))
