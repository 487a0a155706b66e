"""`rollscope runs`, `backup`, `restore` and `move`: what they print, change and refuse."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from server.main import main
from server.store import Store
from server.store.lock import acquire
from server.store.types import Batch
from tests.store.helpers import DAY, T0
from tests.store.test_removal import fill, rows


def call(store_url: str, *words: str) -> int:
    return main([*words, "--store", store_url])


def test_list_and_remove(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "run")
    fill(store, "other")
    assert call(store.url, "runs", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "FRAMEWORK", "FIRST", "DATA", "LAST", "DATA"]
    assert {line.split()[0] for line in lines[1:3]} == {"other", "run"}
    assert lines[1].split()[1:] == ["not_collected", "-", "2023-11-15", "00:00", "UTC", "2023-11-15", "02:59", "UTC"]
    assert "samples from 2023-11-15 00:00 UTC" in lines[-1]
    assert call(store.url, "runs", "rm", "run", "--yes") == 0
    assert capsys.readouterr().out == "run run is deleted\n"
    assert [row.name for row in store.runs.all()] == ["other"]


@pytest.mark.parametrize("writable", [False, True], ids=["folder-read-only", "folder-writable"])
def test_a_stopped_store_without_write_permission_can_be_read(store: Store, tmp_path: Path, *, writable: bool) -> None:
    """The file is read-only, and its folder too or not. Root is not subject to permissions, so it drops its rights."""
    if not store.url.startswith("sqlite"):
        pytest.skip("permissions of files")
    fill(store, "run")
    folder = tmp_path / "shared"
    folder.mkdir()
    assert call(store.url, "backup", str(folder / "store.db")) == 0
    (folder / "store.db").chmod(0o444)
    folder.chmod(0o755 if writable else 0o555)
    done = without_rights("runs", "list", "--store", f"sqlite:///{folder}/store.db")
    folder.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("run ")


def without_rights(*arguments: str) -> subprocess.CompletedProcess[str]:
    rootless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*rootless, sys.executable, "-m", "server.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_store_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The store of another account is not readable. Root drops its rights, because permissions do not restrict it."""
    file = tmp_path / "store.db"
    file.write_bytes(b"")
    file.chmod(0)
    listed = without_rights("runs", "list", "--store", f"sqlite:///{file}")
    assert listed.returncode == 2
    assert listed.stderr == (
        f"rollscope: store: no permission to read {file}: use the account that it belongs to, or query its "
        "server: rollscope status --url URL\n"
    )


def test_refusals(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "run")
    assert call(store.url, "runs", "rm", "rum", "--yes") == 2
    assert capsys.readouterr().err == "rollscope: no run is named 'rum'; runs: run\n"
    assert call(store.url, "runs", "rm", "run") == 2
    assert capsys.readouterr().err == "rollscope: this deletes run run permanently: repeat it with --yes\n"
    store.write(Batch("run", run_fields={"collected_at": round(time.time() * 1000)}))
    assert call(store.url, "runs", "rm", "run", "--yes") == 2
    assert "run run is being collected: remove it from the configuration" in capsys.readouterr().err
    assert rows(store)["samples"] == 180


def test_prune_by_the_configuration(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run attached just now keeps all; with 10 minutes of retention an hour later nothing is left."""
    fill(store, "run")
    (tmp_path / "rollscope.toml").write_text('[store]\nraw = "10m"\n')
    assert call(store.url, "runs", "prune", "-c", str(tmp_path / "rollscope.toml")) == 0
    assert rows(store)["samples"] == 180
    with store._engines.write.begin() as connection:  # type: ignore[union-attr]
        connection.exec_driver_sql(f"UPDATE runs SET attached_at = {T0 - DAY}")
    assert call(store.url, "runs", "prune", "-c", str(tmp_path / "rollscope.toml")) == 0
    assert rows(store)["samples"] == 0
    assert capsys.readouterr().out.startswith("store: ")


def test_backup_and_restore(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "run")
    assert call(store.url, "backup", str(tmp_path / "b.db")) == 0
    out = capsys.readouterr().out
    assert "samples                         180 rows" in out
    assert f"backup: {tmp_path}/b.db (" in out
    assert call(f"sqlite:///{tmp_path}/new.db", "restore", str(tmp_path / "b.db")) == 0
    assert call(store.url, "restore", str(tmp_path / "b.db")) == 2
    assert "rollscope: the target store holds runs already: choose an empty one" in capsys.readouterr().err


def test_move_needs_a_store_without_a_collector(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "run")
    target = f"sqlite:///{tmp_path}/moved.db"
    with acquire(store.url, serving="http://127.0.0.1:1"):
        assert call(store.url, "move", "--to", target) == 2
    assert "is held by pid" in capsys.readouterr().err
    assert call(store.url, "move", "--to", target) == 0
    moved = Store.open(target)
    assert rows(moved) == rows(store)
    moved.close()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The database of another application that uses Alembic, too, and also names a table `runs`."""
    path = tmp_path / "foreign.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (a)")
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("INSERT INTO alembic_version VALUES ('ae1027a6acf2')")
        connection.commit()
    return path


@pytest.mark.parametrize(
    "command",
    ["up --port 0 --store {}", "demo --port 0 --store {}", "migrate --store {}", "runs list --store {}",
     "status --store {}", "backup {}.copy --store {}", "move --store {} --to {}.copy", "restore FILE --store {}",
     "move --to {} --store STORE"],
)  # fmt: skip
def test_a_database_of_another_application_is_refused_and_not_changed(
    command: str, foreign: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(store.url, "backup", str(tmp_path / "b.db")) == 0
    before = foreign.read_bytes()
    capsys.readouterr()
    words = command.replace("FILE", str(tmp_path / "b.db")).replace("STORE", store.url).split()
    urls = {"--store": f"sqlite:///{foreign}", "--to": f"sqlite:///{foreign}"}
    given = [word.replace("{}", urls.get(last, str(foreign))) for last, word in zip(["", *words], words, strict=False)]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{foreign} is a database of another application, and was not changed: name another file" in error
    assert foreign.read_bytes() == before
    assert {path.name for path in tmp_path.glob("foreign*")} == {"foreign.db"}


def test_a_file_that_is_no_backup_is_named(foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (Path("/etc/passwd"), foreign):
        assert call(f"sqlite:///{tmp_path}/new.db", "restore", str(file)) == 2
        problem = f"{file} is no Rollscope backup: name a file that `rollscope backup` wrote"
        assert capsys.readouterr().err == f"rollscope: {problem}\n"
    assert not (tmp_path / "new.db").exists()


def test_runs_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"sqlite:///{tmp_path}/new.db", "runs", "list") == 2
    assert capsys.readouterr().err == (
        f"rollscope: there is no store at {tmp_path}/new.db yet: `rollscope watch` and `rollscope up` make one when "
        "they start\n"
    )
