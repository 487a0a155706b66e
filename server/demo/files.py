"""Files that grow as the simulation goes, with event times for modification times; and those who write some."""

import os
from pathlib import Path

from server.demo.records import Watcher


class AppendFile:
    """A text file that grows, with the event time of its last line as modification time (epoch seconds)."""

    def __init__(self, path: Path, start: float) -> None:
        self._path = path
        # Unbuffered: what is flushed goes out in one write, so that a reader rarely meets half a line.
        self._file = path.open("wb", buffering=0)
        self._pending: list[str] = []
        self._stamp: float | None = start
        self.flush()

    def line(self, text: str, stamp: float) -> None:
        self._pending.append(text + "\n")
        self._stamp = stamp

    def flush(self) -> None:
        if self._stamp is None:
            return
        self._file.write("".join(self._pending).encode())
        self._pending.clear()
        os.utime(self._path, (self._stamp, self._stamp))
        self._stamp = None

    def close(self) -> None:
        self._file.close()


class Files(Watcher):
    """A base of whoever writes files from beginning to end: each is `_open`ed once. `start`: the run's, epoch seconds.

    It stands before the observer that it is mixed with, whose own `flush` and `close` do nothing.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self._files: list[AppendFile] = []

    def _open(self, path: Path) -> AppendFile:
        file = AppendFile(path, self._start)
        self._files.append(file)
        return file

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def close(self) -> None:
        for file in self._files:
            file.close()
