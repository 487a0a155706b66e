"""The demo as a process of its own."""

import os
import signal
import subprocess
from pathlib import Path

from tests.e2e.program import PROGRAM, environment


def test_sigterm_to_the_process_group_in_the_first_hour_is_a_clean_end(tmp_path: Path) -> None:
    """As `timeout 20 rollscope demo` sends it."""
    given = {**environment(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*PROGRAM, "demo", "--port", "0", "--no-browser"], env=given,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert any(line.startswith("Rollscope is at ") for line in process.stdout)
        os.killpg(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in errors, errors
    assert "ResourceWarning" not in errors, "a socket or file is left to the interpreter's end"
    assert list(tmp_path.glob("rollscope-demo-*")) == [], "the demo's folder is removed"
