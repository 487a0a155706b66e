"""The peers of `bench.ui`: TensorBoard and trackio, with their own writers, servers and pages, showing the same run.

One run of verl is written by TensorBoard's event writer (which `rollscope watch` reads as it is) and by trackio, with
the same steps and keys. Both are in `.venv-writers`, see the Makefile. A peer that cannot start is reported, not
measured.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.server import cpu_seconds
from tests.support_writers import ENVIRONMENT, _environment

STEP_SECONDS = 8.0
# A verl step has eleven keys that every user logs, and any number of further keys.
KEYS = (
    "timing_s/step", "timing_s/gen", "timing_s/update_actor", "timing_s/update_weights", "critic/score/mean",
    "actor/entropy", "actor/grad_norm", "response_length/mean", "response_length/max", "response_length/clip_ratio",
    "perf/throughput",
)  # fmt: skip
START_SECONDS = 180.0

_ROWS = """
import math, sys
folder, keys = sys.argv[1], sys.argv[3].split()
steps, begin, seconds = int(sys.argv[2]), float(sys.argv[4]), float(sys.argv[5])
def row(step):
    return {key: (1 + n) * (1 + 0.1 * math.sin(step / 50 + n)) for n, key in enumerate(keys)}
"""
_TENSORBOARD = (
    _ROWS
    + """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(folder)
for step in range(1, steps + 1):
    values = [Summary.Value(tag=key, simple_value=value) for key, value in row(step).items()]
    writer.add_event(Event(wall_time=begin + step * seconds, step=step, summary=Summary(value=values)))
writer.close()
"""
)
_TRACKIO = (
    _ROWS
    + """
import os
os.environ["TRACKIO_DIR"] = folder
import trackio
trackio.init(project="p", name="exp")
for step in range(1, steps + 1):
    trackio.log(row(step), step=step)
trackio.finish()
"""
)


# TensorBoard draws SVG below shadow roots. trackio's canvas exists before its lines; a coloured pixel shows a line.
_TENSORBOARD_DRAWN = """() => {
  const drawn = (root) => [...root.querySelectorAll("*")].some((el) => el.shadowRoot ? drawn(el.shadowRoot)
    : el.matches("path.line") && (el.getAttribute("d") || "").length > 100);
  return drawn(document);
}"""
_TRACKIO_DRAWN = """() => [...document.querySelectorAll("canvas.marks")].some((el) => {
  const { data } = el.getContext("2d").getImageData(0, 0, el.width, el.height);
  const coloured = ([red, green, blue]) => Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] && coloured(data.slice(i, i + 3))) return true;
  return false;
})"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A viewer that serves the run. ``drawn``: JavaScript that is true once a line is on the screen."""

    name: str
    url: str
    drawn: str
    pid: int

    def cpu(self) -> float:
        """Returns CPU seconds of its process and its children."""
        return sum(cpu_seconds(pid) for pid in (self.pid, *_children(self.pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            below = [int(word) for word in (task / "children").read_text().split()]
            found += below + [more for one in below for more in _children(one)]
    return found


def keys(count: int) -> list[str]:
    """Returns the requested number of keys: verl's own, then a user's."""
    return [*KEYS, *(f"env/reward_{number}" for number in range(count))][:count]


def _python() -> Path:
    return Path(os.environ.get("ROLLSCOPE_TEST_WRITERS") or ENVIRONMENT) / "bin" / "python"


def write(kind: str, folder: Path, steps: int, count: int, begin: float) -> None:
    """Writes the run with the peer's own writer.

    Raises:
        RuntimeError: it failed, with its output.
    """
    script = {"tensorboard": _TENSORBOARD, "trackio": _TRACKIO}[kind]
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(folder), str(steps), " ".join(keys(count)), repr(begin), str(STEP_SECONDS)]
    done = subprocess.run(
        [str(_python()), "-c", script, *words], env=_environment(str(folder.parent)), cwd=folder.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{kind}'s writer failed: {done.stderr.strip().splitlines()[-1:]}")


@contextlib.contextmanager
def _serving(words: list[str], home: Path, more: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yields (url, pid) of a viewer that prints its URL."""
    environment = {**_environment(str(home)), "GRADIO_ANALYTICS_ENABLED": "False", **more}
    process = subprocess.Popen(
        [str(_python()), *words], env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line.strip())
            if found := re.search(r"http://(?:localhost|127\.0\.0\.1):\d+[^\s\x1b]*", line):
                break
        else:
            raise RuntimeError(f"ended with {process.wait()}: {' '.join(said[-2:])}")
        yield found[0].replace("localhost", "127.0.0.1"), process.pid
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[Peer]:
    """Serves TensorBoard over a folder of event files, with its page of scalars."""
    words = ["-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
    # Tags of one prefix are a group; the first is open. A line is a path with segments, on SVG or WebGL.
    with _serving(words, folder.parent, {}) as (url, pid):
        yield Peer("TensorBoard", f"{url.rstrip('/')}/#scalars", _TENSORBOARD_DRAWN, pid)


@contextlib.contextmanager
def trackio(folder: Path) -> Iterator[Peer]:
    """Serves trackio's dashboard over its own folder."""
    words = ["-m", "trackio.cli", "show", "--project", "p", "--no-footer"]
    with _serving(words, folder.parent, {"TRACKIO_DIR": str(folder)}) as (url, pid):
        yield Peer("trackio", url, _TRACKIO_DRAWN, pid)
