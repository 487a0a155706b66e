"""The store: SQLite or PostgreSQL. The only folder with SQL.

What is named here is loaded when it is first asked for: `server.store.types` are records for those, too, who never open
a store, and SQLAlchemy is half a second of every command's start.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.store.engine import StoreError
    from server.store.samples import fit_width
    from server.store.schema import migrate
    from server.store.store import Store
    from server.store.writer import QueueFull, Writer, WriterClosed
else:
    _HOMES = {
        "StoreError": "engine", "fit_width": "samples", "migrate": "schema", "Store": "store",
        "QueueFull": "writer", "Writer": "writer", "WriterClosed": "writer",
    }  # fmt: skip

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = ["QueueFull", "Store", "StoreError", "Writer", "WriterClosed", "fit_width", "migrate"]
