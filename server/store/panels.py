"""The charts that each user chose, in their order."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, select

from server.store.bulk import upsert
from server.store.engine import Engines
from server.store.tables import panels
from server.store.types import OwnPanel


class PanelStore:
    """The charts of users. Thread-safe."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def of(self, owner: str) -> list[OwnPanel]:
        """In the user's order."""
        query = select(panels.c.panels).where(panels.c.owner == owner)
        with self._engines.reading() as connection:
            found = connection.execute(query).scalar()
        return msgspec.json.decode(found, type=list[OwnPanel]) if found else []

    def put(self, owner: str, chosen: Sequence[OwnPanel], now_ms: int) -> None:
        """Replaces all of a user's charts."""
        row = (owner, msgspec.json.encode(chosen).decode(), now_ms)
        with self._engines.writable().begin() as connection:
            if chosen:
                upsert(connection, panels, ("owner", "panels", "updated_at"), [row], ("panels", "updated_at"))
            else:
                connection.execute(delete(panels).where(panels.c.owner == owner))
