"""Names of runs: derived for runs without a name, and checked."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from server.config.errors import ConfigError

# Folders that many projects have: two runs in such folders must not get the same name.
COMMON_NAMES = frozenset({"output", "outputs", "run", "runs", "results", "checkpoints", "trainer", "logs", "trackio"})


def run_name(sources: Iterable[str]) -> str:
    """The name of a run without one: its directory's, or else its first host's."""
    sources = list(sources)
    paths = [Path(source).resolve() for source in sources if "://" not in source]
    if paths:
        path = paths[0].parent if os.path.isfile(paths[0]) else paths[0]
        named = path.name if path.name not in COMMON_NAMES else f"{path.parent.name}-{path.name}"
        return clean(named) or "run"
    return (clean(place_of(sources[0])) if sources else "") or "run"


def place_of(url: str) -> str:
    """Host and port of a URL, without credentials."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}-{parts.port}" if parts.port else parts.hostname or ""
    except ValueError:
        return ""


def shown_url(url: str) -> str:
    """A URL as it may be printed: scheme, host and port as written, without credentials, path and query."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, rest = "", url
    return f"{scheme}{slashes}{re.split('[/?#]', rest)[0].rpartition('@')[2]}"


def check_name(name: str) -> None:
    """Refuse a run name that does not fit into a URL, a label or a screen.

    Raises:
        ConfigError: with the rule.
    """
    if not name.isprintable() or not 0 < len(name) <= 200 or "/" in name or name in (".", ".."):
        raise ConfigError([f"run name {ascii(name)[:80]}: 1 to 200 printable characters without /"])


def clean(text: str) -> str:
    """Replaces characters that are special in a shell, a URL or a label by a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
