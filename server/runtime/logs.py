"""The log of every process: one format for our loggers and uvicorn's, as text or as JSON lines."""

import json
import logging
from datetime import UTC, datetime

Levels = tuple[int, int]
"""Levels of the root logger and of `rollscope`."""

# The level of libraries that log each request or migration at INFO.
_QUIET = ("httpx", "alembic")


def levels(verbose: bool) -> Levels:
    return (logging.INFO if verbose else logging.WARNING), logging.INFO


def configure(wanted: Levels, style: str) -> None:
    """Log to standard error. ``style``: "text" or "json"."""
    root, own = wanted
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=root, handlers=[handler])
    logging.getLogger("rollscope").setLevel(own)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def style() -> str:
    """The configured style, for a child process."""
    json_handlers = (isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if any(json_handlers) else "text"


class TextFormatter(logging.Formatter):
    """``2026-11-23T08:00:00.123+01:00 INFO rollscope.collect: message``, in the machine's time zone."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and, if there was one, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
