"""One collector per store, and no SQLite on network file systems."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from server.store import Store
from server.store.lock import Lease, Locked, UnsafeFileSystem, acquire, check_file_system, mount_of

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
41 22 0:41 / /scratch rw - lustre mgs@tcp:/scratch rw
42 40 0:42 / /home/local\\040disk rw - xfs /dev/sdb rw
43 22 0:43 / /mnt/share rw - cifs //nas/share rw
44 22 0:44 / /gpfs rw - gpfs gpfs rw
45 22 0:45 / /mnt/ssh rw - fuse.sshfs me@host: rw
46 22 0:46 / /containers rw - fuse.fuse-overlayfs fuse-overlayfs rw
47 22 0:47 / /twice rw - nfs a:/b rw
48 47 0:48 / /twice rw master:1 propagate_from:2 - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "mount", "kind"),
    [
        ("/var/lib/x.db", "/", "ext4"),
        ("/homeless/x.db", "/", "ext4"),  # a prefix of the name is not the folder
        ("/home/me/x.db", "/home", "nfs4"),
        ("/home/local disk/x.db", "/home/local disk", "xfs"),
        ("/twice/x.db", "/twice", "tmpfs"),  # the later mount hides the earlier
    ],
)
def test_the_mount_of_a_path(path: str, mount: str, kind: str) -> None:
    assert mount_of(Path(path), MOUNTS) == (mount, kind)


@pytest.mark.parametrize("folder", ["/home/me", "/scratch", "/mnt/share", "/gpfs/p", "/mnt/ssh"])
def test_network_file_systems_are_refused_with_a_way_out(folder: str) -> None:
    with pytest.raises(UnsafeFileSystem, match=r"local disk.*--store sqlite:////.*PostgreSQL"):
        check_file_system(Path(folder, "store.db"), MOUNTS)


@pytest.mark.parametrize("folder", ["/var", "/home/local disk", "/containers", "/twice"])
def test_local_ones_are_fine(folder: str) -> None:
    check_file_system(Path(folder, "store.db"), MOUNTS)


def test_acquire_refuses_too(tmp_path: Path) -> None:
    everything_nfs = "22 1 8:1 / / rw - nfs4 server:/ rw\n"
    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        acquire(f"sqlite:///{tmp_path}/x.db", mountinfo=everything_nfs)
    acquire(f"sqlite:///{tmp_path}/x.db", mountinfo="").release()


def test_the_second_is_told_who_holds_it(store_url: str) -> None:
    first = acquire(store_url, serving="http://127.0.0.1:8050")
    with pytest.raises(Locked) as refused:
        acquire(store_url)
    assert f"held by pid {os.getpid()} on {socket.gethostname()[:20]}" in str(refused.value)
    assert "serving http://127.0.0.1:8050"[:30] in str(refused.value)
    assert first.held()
    first.release()
    first.release()
    assert not first.held()
    with acquire(store_url) as second:
        assert second.held()


CHILD = """
import sys
from server.store.lock import acquire
lease = acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_holder_frees_it(store_url: str) -> None:
    argv = [sys.executable, "-c", CHILD, store_url]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(Locked, match=f"pid {child.pid}"):
        acquire(store_url)
    child.kill()
    child.communicate()
    _acquire_soon(store_url).release()


def _acquire_soon(url: str) -> Lease:
    """PostgreSQL notices the end of a session on its own: ask until it has."""
    for _ in range(10_000):
        try:
            return acquire(url)
        except Locked:
            continue
    raise AssertionError("the lock was never freed")


@pytest.mark.postgres
def test_a_leader_whose_session_ends_knows(postgres_store: Store) -> None:
    lease = acquire(postgres_store.url)
    with postgres_store._engines.writable().begin() as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'rollscope %'")
        )
    assert not lease.held()
    _acquire_soon(postgres_store.url).release()
    lease.release()
