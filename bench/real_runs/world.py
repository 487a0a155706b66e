"""The systems of a recorded run as the product observes them: engines on loopback HTTP and a growing trainer log."""

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from bench.real_runs.recording import STEP_KEY, Log, LogRow, Page
from collectors.formats import tensorboard

Clock = Callable[[], float]


@contextmanager
def engines(fleet: Sequence[Sequence[Page]], now: Clock) -> Iterator[list[str]]:
    """Serves each engine's newest page of the instant `now()`; yields the URLs. A dead engine closes the connection."""
    servers = [_server(pages, now) for pages in fleet]
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _server(pages: Sequence[Page], now: Clock) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            past = [page.body for page in pages if page.at <= now()]
            body = past[-1] if past else None
            self.close_connection = True
            if body is None:
                return
            if self.path.split("?")[0] not in ("/metrics", "/health"):
                self.send_error(404)
                return
            body = b"" if self.path == "/health" else body
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class LogWriter(Protocol):
    """Writes the recorded rows into a run directory as their time comes."""

    def write(self, until: float) -> None: ...

    def close(self) -> None: ...


@dataclass
class TrackioWriter:
    """The trackio database of the recorded run, with its own schema."""

    folder: Path
    log: Log
    _database: sqlite3.Connection | None = None
    _written: int = 0

    def write(self, until: float) -> None:
        fresh = [row for row in self.log.rows[self._written :] if row.at <= until]
        if not fresh:
            return
        database = self._database or self._create()
        for row in fresh:
            marks = ",".join("?" * len(row.values))
            database.execute(
                f"INSERT INTO {row.table} ({','.join(row.values)}) VALUES ({marks})", tuple(row.values.values())
            )
        self._written += len(fresh)
        for file in (self.folder / "trackio").iterdir():
            os.utime(file, (until, until))

    def _create(self) -> sqlite3.Connection:
        (self.folder / "trackio").mkdir(parents=True)
        database = sqlite3.connect(self.folder / "trackio" / "async-grpo.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=wal")
        for statement in self.log.schema:
            database.execute(statement)
        self._database = database
        return database

    def close(self) -> None:
        if self._database is not None:
            self._database.close()


@dataclass
class TensorBoardWriter:
    """The same rows as the trainer's TensorBoard callback writes them: scalars by step, the arguments as a text."""

    folder: Path
    log: Log
    _written: int = 0
    _file: Path | None = field(default=None)

    def write(self, until: float) -> None:
        fresh = [row for row in self.log.rows[self._written :] if row.at <= until]
        if not fresh:
            return
        if self._file is None:
            folder = self.folder / "runs"
            folder.mkdir(parents=True)
            self._file = folder / f"events.out.tfevents.{int(fresh[0].at)}.host.1.0"
        with self._file.open("ab") as file:
            for row in fresh:
                for payload in _events(row, self.log.closing):
                    file.write(_record(payload))
        self._written += len(fresh)
        os.utime(self._file, (until, until))

    def close(self) -> None: ...


def _events(row: LogRow, closing: Mapping[str, float]) -> Iterator[bytes]:
    if row.table == "configs":
        text = row.values["config"]
        yield _event(row.at, 0, [_text("args/text_summary", text if isinstance(text, bytes) else text.encode())])
    values = {**row.metrics(), **(closing if row.is_closing else {})}
    if STEP_KEY in values:
        step = int(values.pop(STEP_KEY))
        yield _event(row.at, step, [_scalar(key, value) for key, value in values.items() if _is_number(value)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _sized(tag: int, body: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return bytes([tag << 3 | 2]) + _varint(len(body)) + body


def _scalar(key: str, value: float) -> bytes:
    """Summary.Value: tag = 1, simple_value = 2."""
    return _sized(1, key.encode()) + b"\x15" + struct.pack("<f", value)


def _text(key: str, text: bytes) -> bytes:
    """Summary.Value of the text plugin: tag = 1, tensor = 8 (dtype DT_STRING, string_val = 8), metadata = 9."""
    tensor = b"\x08\x07" + _sized(8, text)
    metadata = _sized(1, _sized(1, b"text"))
    return _sized(1, key.encode()) + _sized(8, tensor) + _sized(9, metadata)


def _event(at: float, step: int, values: Sequence[bytes]) -> bytes:
    """Event: wall_time = 1, step = 2, summary = 5."""
    summary = b"".join(_sized(1, value) for value in values)
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + _sized(5, summary)


def _record(payload: bytes) -> bytes:
    """TFRecord: length, checksum of the length, payload, checksum of the payload."""
    head = struct.pack("<Q", len(payload))
    length, body = (struct.pack("<I", tensorboard.masked_crc(data)) for data in (head, payload))
    return head + length + payload + body


SINKS: dict[str, Callable[[Path, Log], LogWriter]] = {"trackio": TrackioWriter, "tensorboard": TensorBoardWriter}
