"""Files written by other systems: read on change, off the event loop, and never assumed to be complete.

Writers may not write atomically. A file that cannot be read completely keeps the last list, and so does a missing file
for a while. Read-only.
"""

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from server.lib.file_thread import FileReadThread, StillReadingError
from server.targets.discovery.model import BYTES, DiscoveryError

# The list of a missing file is kept for this long, s. Writers may delete a file first; a scheduler may take minutes.
KEEP_SECONDS = 300.0
# Most files that a pattern may match.
FILES = 100

T = TypeVar("T")
Signature = tuple[int, int, int]
_NOTHING: Signature = (0, 0, 0)


@dataclass(slots=True)
class FileState(Generic[T]):
    """One file as read last. ``gone``: since when it is missing (epoch s)."""

    value: T | None = None
    signature: Signature = _NOTHING
    error: str = ""
    missing_since: float | None = None
    # A text without a final line feed may be incomplete: it is accepted if it is unchanged at the next read.
    settling: Signature = _NOTHING


@dataclass(slots=True)
class WatchedFile(Generic[T]):
    """Files by path or pattern, each parsed when it changes.

    Args:
        patterns: paths; the last part of one may contain ``*``.
        parse: (bytes, file) -> its content; raises `DiscoveryError`.
    """

    patterns: Sequence[str]
    parse: Callable[[bytes, Path], T]
    files: dict[str, FileState[T]] = field(default_factory=dict)
    _thread: FileReadThread[bool] = field(default_factory=lambda: FileReadThread("discovery"))

    async def look(self, now: float) -> bool:
        """Reads changed files; did any change? One read at a time: a hanging file system blocks only a thread.

        Raises:
            DiscoveryError: the previous read has not returned.
        """
        try:
            return await self._thread.read(partial(self.read, now))
        except StillReadingError as error:
            raise DiscoveryError(str(error)) from None

    def read(self, now: float) -> bool:
        """Like `look`, on the calling thread."""
        changed, files = False, dict[str, FileState[T]]()
        for name in dict.fromkeys([*self._matches(), *self.files]):
            state = self.files.get(name) or FileState()
            before = state.value
            self._read_one(name, state, now)
            changed = changed or state.value != before
            # A missing file found by a pattern is forgotten with its list; a named file is still expected.
            if state.value is not None or state.missing_since is None or name in self.patterns:
                files[name] = state
        self.files = files
        return changed

    def _matches(self) -> list[str]:
        paths: list[str] = []
        for pattern in self.patterns:
            paths += sorted(glob.glob(pattern))[:FILES] if "*" in Path(pattern).name else [pattern]
        return paths

    def _read_one(self, name: str, state: FileState[T], now: float) -> None:
        try:
            stat = Path(name).stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if signature == state.signature and state.missing_since is None:
                return
            with Path(name).open("rb") as file:
                data = file.read(BYTES + 1)
        except OSError as error:
            self._missing(name, state, error, now)
            return
        state.missing_since = None
        if len(data) > BYTES:
            state.error, state.signature = f"{name}: larger than {BYTES} bytes", signature
        elif data.endswith((b"\n", b"]", b"}")) or signature == state.settling:
            self._parsed(name, state, data, signature)
        else:
            state.error = f"{name}: is being written"
        state.settling = signature

    def _parsed(self, name: str, state: FileState[T], data: bytes, signature: Signature) -> None:
        try:
            state.value = self.parse(data, Path(name))
        except DiscoveryError as error:
            # Without its signature, so that it is read again until it is valid.
            state.error, state.signature = f"{name}: {error}", _NOTHING
        else:
            state.error, state.signature = "", signature

    def _missing(self, name: str, state: FileState[T], error: OSError, now: float) -> None:
        state.missing_since = now if state.missing_since is None else state.missing_since
        state.signature = _NOTHING
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
        if now - state.missing_since > KEEP_SECONDS:
            state.value = None
        remains = f"; its last list is kept for {KEEP_SECONDS / 60:.0f} minutes" if state.value is not None else ""
        state.error = f"{name}: {why}{remains}"

    def error(self) -> str:
        """Returns the errors of all files in one line."""
        return "; ".join(state.error for state in self.files.values() if state.error)
