"""A store on SQLite alone: what is followed does not ask which database holds it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.store import Store


@pytest.fixture
def kept(migrated_file: Path, tmp_path: Path) -> Iterator[Store]:
    shutil.copyfile(migrated_file, tmp_path / "kept.db")
    opened = Store.open(f"sqlite:///{tmp_path}/kept.db")
    yield opened
    opened.close()
