"""Files that grow with the simulation and have event times as modification times; and a base class of writers."""

import os
from pathlib import Path

from server.demo.records import Watcher


class AppendFile:
    """A growing text file; its modification time is the event time of its last line (epoch seconds)."""

    def __init__(self, path: Path, start: float) -> None:
        self._path = path
        # Unbuffered: each flush is one write, so that a reader rarely reads half a line.
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
    """Base class of writers: each file is `_open`ed once. `start`: the run's, epoch seconds.

    It comes before the observer in the class's bases, because the observer's `flush` and `close` are empty.
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
