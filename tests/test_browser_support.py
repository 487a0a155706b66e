"""The browser of the tests: unpacked once, whoever asks for it first."""

import fcntl
from pathlib import Path

import pytest

from tests import browser_support


def test_who_unpacks_keeps_the_other_workers_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
