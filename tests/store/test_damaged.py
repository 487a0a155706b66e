"""A damaged page of a SQLite file: nothing is written there, and the message names the restore of a backup."""

from contextlib import closing
from pathlib import Path

import pytest

from server.store import Store, migrate
from server.store.engine import StoreUnavailable
from tests.api.test_push import Web
from tests.store.helpers import T0
from tests.store.test_removal import fill

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

PAGE_BYTES = 4096


def damaged(path: Path) -> None:
    """Overwrites the root page of the table of runs."""
    with closing(Store.open(f"sqlite:///{path}")) as store, store._engines.reading() as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'runs'"
        (root,) = connection.exec_driver_sql(query).one()
    with path.open("r+b") as file:
        file.seek((root - 1) * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)


def test_a_damaged_page_is_a_503_that_names_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate(f"sqlite:///{path}")
    with closing(Store.open(f"sqlite:///{path}")) as store:
        fill(store, "run")
    damaged(path)
    with closing(Store.open(f"sqlite:///{path}")) as store:
        web = Web(store)
        for answer in (
            web("GET", "/api/v1/runs"),
            web.write("queue_samples 7\n"),
            web("GET", "/api/v1/runs/run/status"),
        ):
            assert answer.status_code == 503
            assert "the store is damaged (" in answer.json()["detail"]
            assert "restore a backup with `rollscope restore`" in answer.json()["detail"]
        with pytest.raises(StoreUnavailable, match="keep the file"):
            store.rollup("run", T0)
