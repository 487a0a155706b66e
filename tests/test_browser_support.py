"""The browser of the tests is unpacked once, by the first worker."""

import fcntl
from pathlib import Path

import pytest

from tests import browser_support


def test_other_workers_wait_for_the_one_that_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("package.json", "bin/chromium.br"):
        (tmp_path / name).write_text("{}")
    made = []

    def unpack_into(packed: Path, folder: Path, binary: Path) -> None:
        made.append(packed)
        with (folder / "lock").open("w") as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        binary.write_text("browser")

    monkeypatch.setattr(browser_support, "PACKAGE", tmp_path)
    monkeypatch.setattr(browser_support, "_unpack_into", unpack_into)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {browser_support.unpack(), browser_support.unpack()}
    assert made == [tmp_path / "bin"] and [path.read_text() for path in found] == ["browser"]
