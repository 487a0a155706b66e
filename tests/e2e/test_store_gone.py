"""A user removes the database file beneath a running server: it says so, and takes nothing that would be lost."""

from pathlib import Path

import httpx

from tests.e2e.program import Program

ROLLOUT = '{"rollout_id": "a", "group_id": "g", "reward": 1.0}'
HERE = "/api/v1/runs/mine/rollouts"


def test_a_removed_store_is_told_and_nothing_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with Program(tmp_path, "up", "--store", f"sqlite:///{path}") as program:

        def push() -> tuple[int, str]:
            kind = {"content-type": "application/x-ndjson"}
            answer = httpx.post(program.url + HERE, content=ROLLOUT, headers=kind, trust_env=False, timeout=30)
            return answer.status_code, answer.text

        assert push()[0] == 200
        for name in ("mine.db", "mine.db-wal", "mine.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        words = f"the store's file {path} was removed while it was in use: restart the server"
        answer = program.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": f"the store does not answer: {words}"})
        assert program.get("/healthz").status_code == 200
        code, text = push()
        assert code == 503 and words in text
        # What stands under its name later is not taken for it either, and none is made by us.
        assert not path.exists()
        path.write_bytes(b"")
        assert "was replaced while" in push()[1]
        program.end()
    assert path.read_bytes() == b""
