"""A real Chromium for tests, as a pytest plugin: ``pytest_plugins = ["tests.browser_support"]``.

The browser comes from the npm package `@sparticuz/chromium`, the only way to get one from a package registry.
We unpack it ourselves: the package would put it into a shared temporary folder and start it with
``--disable-web-security`` and ``--single-process``. A browser of the user's own goes before:
ROLLSCOPE_TEST_CHROMIUM=/path/to/chromium.
"""

import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import brotli  # type: ignore[import-untyped]
import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "node_modules" / "@sparticuz" / "chromium"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
# Nothing of these weakens what pages may do; a container's /dev/shm is small.
FLAGS = ["--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]


class NoBrowser(RuntimeError):
    """Chromium cannot be had here, and why."""


def cache_folder() -> Path:
    """Ours alone: a browser in a shared temporary folder could be anybody's."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "rollscope" / "chromium" if base else ROOT / ".cache" / "chromium"


def unpack() -> Path:
    """The executable, unpacked once per version of the package."""
    packed = PACKAGE / "bin"
    if not (packed / "chromium.br").exists():
        raise NoBrowser("no node_modules/@sparticuz/chromium: run `npm ci` in the repository")
    stamp = hashlib.sha256((PACKAGE / "package.json").read_bytes()).hexdigest()[:12]
    folder = cache_folder() / stamp
    binary = folder / "chromium"
    folder.mkdir(parents=True, exist_ok=True)
    # One of the workers unpacks, the others wait: a browser replaced while it starts cannot start its own helpers.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _unpack_into(packed, folder, binary)
    return binary


def _unpack_into(packed: Path, folder: Path, binary: Path) -> None:
    for name in ("al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br"):
        archive = io.BytesIO(brotli.decompress((packed / name).read_bytes()))
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(folder, filter="data")
    part = folder / f"chromium.{os.getpid()}"
    part.write_bytes(brotli.decompress((packed / "chromium.br").read_bytes()))
    part.chmod(0o755)
    # Last and atomic: who is stopped on the way leaves no half of a browser.
    part.replace(binary)


def environment(binary: Path) -> dict[str, str]:
    """The libraries the package carries, behind the machine's own."""
    found = [os.environ.get("LD_LIBRARY_PATH", ""), str(binary.parent / "lib"), str(binary.parent)]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in found if path)}


def start(playwright: Playwright) -> Browser:
    """Chromium with our own flags; root (containers) cannot have its sandbox."""
    own = os.environ.get("ROLLSCOPE_TEST_CHROMIUM")
    binary = Path(own) if own else unpack()
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    return playwright.chromium.launch(executable_path=binary, args=flags, env={**environment(binary)})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium per module: while it lives a loop runs in this thread, in which other tests could not start theirs.

    Cannot start: the test fails, unless ROLLSCOPE_TEST_SKIP names ``browser``.
    """
    if "browser" in os.environ.get("ROLLSCOPE_TEST_SKIP", "").split(","):
        pytest.skip("ROLLSCOPE_TEST_SKIP names browser")
    with sync_playwright() as playwright:
        found = start(playwright)
        yield found
        found.close()
