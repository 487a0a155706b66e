"""`rollscope status --url URL`: what it says where no Rollscope server gives it a status."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.cli.status import dump, healthy, short, stored, text
from server.main import main
from server.store import Store, migrate
from server.store.types import Batch, RetentionSettings, SeriesKey


@contextmanager
def answering(code: int, kind: str, body: bytes) -> Iterator[str]:
    """A server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


FOREIGN = "a server answers that is not Rollscope"


@pytest.mark.parametrize(
    ("token", "code", "kind", "body", "why"),
    [
        (
            "",
            401,
            "text/plain",
            b"token missing",
            "status: access denied (HTTP 401): ROLLSCOPE_TOKEN is not set, and this",
        ),
        (
            "wrong-token",
            401,
            "text/plain",
            b"no",
            "status: access denied (HTTP 401): ROLLSCOPE_TOKEN is not this server's token",
        ),
        ("", 200, "text/html", b"<html>hi</html>", f"--url URL: {FOREIGN} (HTTP 200, text/html)"),
        ("", 404, "application/json", b'{"detail": "Not Found"}', f"--url URL: {FOREIGN} (it has no list of runs"),
        ("", 200, "application/json", b'{"hello": 1}', f"--url URL: {FOREIGN} (it has no list of runs"),
        ("", 500, "application/json", b'{"detail": "the store is away"}', "status: the store is away"),
        ("", 200, "application/json", b"[]", "status: there is no run yet"),
    ],
)
def test_another_answer_than_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token: str, code: int, kind: str, body: bytes,
    why: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("ROLLSCOPE_TOKEN", token) if token else monkeypatch.delenv("ROLLSCOPE_TOKEN", raising=False)
    with answering(code, kind, body) as url:
        assert main(["status", "--url", url]) == 2
        assert capsys.readouterr().err.startswith(f"rollscope: {why.replace('URL:', f'{url}:')}")


def test_no_server_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "http://user:secret@gpu-node-1.invalid:8050/x"]) == 2
    told = capsys.readouterr().err
    assert told == "rollscope: --url http://gpu-node-1.invalid:8050: host name not found (DNS)\n"


@pytest.mark.parametrize("url", ["foo", "user:secret@foo/x"])
def test_a_url_without_a_scheme_is_shown_as_given(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 2
    assert capsys.readouterr().err == "rollscope: --url foo: the URL is not valid: write http://HOST:PORT\n"


def test_a_pushed_run_says_what_to_log_and_that_its_trainer_reports() -> None:
    missing = ["trainer_wait_ratio: log it", "queue_samples: log the depth", "a: 1", "b: 2", "c: 3"]
    status = {
        "run": "r", "framework": "", "mode": "", "facts": {}, "lifecycle": "running", "now": 1000.0, "trust": [],
        "alerts": [], "signals": {"trainer_step_seconds": {"value": None, "unit": "s", "state": "unknown", "why": ""}},
        "verdict": {"outcome": "unknown", "cause": "missing", "summary": "The limiter is unknown", "missing": missing},
    }  # fmt: skip
    assert short(status).splitlines()[:7] == [
        "r: no trainer yet, mode unknown, running",
        "verdict: unknown (missing)",
        "  The limiter is unknown",
        "  to find it, log:",
        "    - trainer_wait_ratio: log it",
        "    - queue_samples: log the depth",
        "    - a: 1",
    ]
    assert "    - and 2 more" in short(status).splitlines()
    status["signals"] = {"trainer_step_seconds": {"value": 30.0, "unit": "seconds", "state": "ok", "why": ""}}
    assert short(status).splitlines()[0] == "r: trainer without a name, mode unknown, running"


def test_history_that_is_being_read_has_no_health() -> None:
    wait = {"value": 0.4, "unit": "ratio", "state": "critical", "age_seconds": 5.0, "source": "trainer", "why": ""}
    alert = {
        "name": "TrainerStarved", "state": "firing", "severity": "warning", "age_seconds": 60.0, "muted": "",
        "summary": "The trainer waits",
    }  # fmt: skip
    status = {
        "run": "r", "framework": "verl", "mode": "async", "facts": {}, "lifecycle": "running", "now": 1000.0,
        "state": {"name": "live", "since": None, "as_of": 995.0}, "trust": [], "alerts": [alert],
        "signals": {"trainer_wait_ratio": wait}, "verdict": {"outcome": "unknown", "summary": "no verdict"},
    }  # fmt: skip
    for shown in (short(status), text(status)):
        assert shown.count("CRITICAL") == 1 and "firing for 60 s: TrainerStarved" in shown
    status["state"] = {"name": "catching_up", "since": 0.0, "as_of": 100.0, "progress": 0.1, "seconds_left": 60.0}
    for shown in (short(status), text(status)):
        assert "signals and alerts are not judged: history is being read" in shown.splitlines()
        assert "CRITICAL" not in shown and "alerts:" not in shown and "flagged" not in shown
    printed = json.loads(dump(status))
    assert printed["alerts"] == [] and printed["signals"]["trainer_wait_ratio"] == wait | {
        "state": "unknown", "why": "not judged: history is being read",
    }  # fmt: skip


KEPT = "kept: raw samples 15d, signals 90d, records 90d, rollups permanently"


def test_the_line_on_the_store_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    migrate(url)
    store = Store.open(url)
    (series,) = store.series.intern("run", [SeriesKey("engine-0", "m")])
    store.write(Batch("run", samples=[(series, 1_700_006_400_000, 1.0)]))
    size = round(store.retention.size().bytes / 1e6)
    store.close()
    assert main(["status", "--store", url]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"store: {size} MB, raw samples since 2023-11-15 00:00 UTC; {KEPT}"


def test_the_line_on_the_store_of_a_server() -> None:
    page = (
        "rollscope_store_bytes 4.7e+07\nrollscope_store_oldest_sample_timestamp_seconds 1.7000064e+09\n"
        'rollscope_retention_seconds{kind="raw"} 1.296e+06\nrollscope_retention_seconds{kind="signals"} 7.776e+06\n'
        'rollscope_retention_seconds{kind="records"} 7.776e+06\nrollscope_retention_seconds{kind="rollups"} +Inf\n'
    )
    with answering(200, "text/plain", page.encode()) as url:
        line = stored(url, "", None, RetentionSettings())
    assert line == f"store: 47 MB, raw samples since 2023-11-15 00:00 UTC; {KEPT}"
    with answering(404, "text/plain", b"") as url:
        assert stored(url, "", None, RetentionSettings()) == ""


def test_what_the_size_limit_deleted_is_said() -> None:
    page = (
        "rollscope_store_bytes 4.7e+07\nrollscope_store_limit_bytes 5e+07\n"
        'rollscope_store_deleted_before_timestamp_seconds{kind="raw"} 1.7000064e+09\n'
        'rollscope_store_deleted_before_timestamp_seconds{kind="records"} 1.70001e+09\n'
    )
    with answering(200, "text/plain", page.encode()) as url:
        line = stored(url, "", None, RetentionSettings())
    assert line.endswith(
        "; max_size 50 MB deleted raw samples before 2023-11-15 00:00 UTC, records before 2023-11-15 01:00 UTC"
    )


def test_a_size_limit_that_deleted_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    migrate(url)
    line = stored(None, url, None, RetentionSettings(max_bytes=50_000_000))
    assert line.endswith("; max_size 50 MB, nothing deleted by it")


def test_the_lines_on_rollscope_itself() -> None:
    page = (
        "# TYPE rollscope_store_bytes gauge\nrollscope_store_bytes 4.7e+07\n"
        "# TYPE rollscope_store_disk_bytes gauge\nrollscope_store_disk_bytes 5.1e+07\n"
        "# TYPE rollscope_store_table_bytes gauge\n"
        'rollscope_store_table_bytes{table="points"} 9e+06\nrollscope_store_table_bytes{table="rollouts"} 3.1e+07\n'
        "# TYPE rollscope_tick_seconds summary\n"
        'rollscope_tick_seconds_count{run="a"} 100\nrollscope_tick_seconds_sum{run="a"} 12\n'
        'rollscope_tick_seconds_count{run="b"} 10\nrollscope_tick_seconds_sum{run="b"} 3\n'
        "# TYPE rollscope_retention_lag_seconds gauge\nrollscope_retention_lag_seconds 600\n"
        "# TYPE rollscope_process_cpu_seconds counter\n"
        'rollscope_process_cpu_seconds_total{process="collect"} 7200\n'
    )
    with answering(200, "text/plain", page.encode()) as url:
        assert healthy(url, None) == [
            "store: 47.0 MB in use, 51.0 MB on disk",
            "largest tables: rollouts 31.0 MB, points 9.0 MB",
            "steps: 0.3 s on average, of 5 s (b, the slowest run)",
            "retention: behind for 10 min",
            "collecting process: 2.0 h of CPU",
        ]
