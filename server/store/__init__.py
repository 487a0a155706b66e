"""The store: SQLite or PostgreSQL. The only folder with SQL."""

from server.store.engine import StoreError
from server.store.ranges import fit_width
from server.store.schema.migrate import migrate
from server.store.store import Store
from server.store.writer import QueueFull, Writer, WriterClosed

__all__ = ["QueueFull", "Store", "StoreError", "Writer", "WriterClosed", "fit_width", "migrate"]
