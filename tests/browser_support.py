"""A real Chromium for tests, as a pytest plugin: ``pytest_plugins = ["tests.browser_support"]``.

The browser comes from the npm package `@sparticuz/chromium`, the only way to get one from a package registry. We unpack
it, because the package would use a shared temporary folder and the flags ``--disable-web-security`` and
``--single-process``. ROLLSCOPE_TEST_CHROMIUM=/path/to/chromium has precedence.
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
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "node_modules" / "@sparticuz" / "chromium"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
# None of these flags weakens the restrictions of pages. The first is needed because a container's /dev/shm is small.
FLAGS = ["--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
# `RS`: what the page's modules export, then the properties of their `state`. It is set once they have run.
SCRIPTS = """addEventListener("DOMContentLoaded", async () => {
  const entry = document.querySelector("script[type=module]");
  if (!entry) return;
  const all = await import(entry.src);
  window.RS = new Proxy({}, {
    get: (_, name) => (name in all ? all[name] : all.state[name]),
    set: (_, name, value) => Reflect.set(all.state, name, value),
  });
});"""


class NoBrowser(RuntimeError):
    """Chromium is not available; the message has the reason."""


def cache_folder() -> Path:
    """A private folder: another user could have replaced a browser in a shared temporary folder."""
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
    # One of the workers unpacks and the others wait, because a browser that is replaced during its start fails.
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
    # Last and atomic, so that an interrupted process leaves no partial browser.
    part.replace(binary)


def environment(binary: Path) -> dict[str, str]:
    """The environment with the libraries of the package, after those of the machine."""
    paths = [os.environ.get("LD_LIBRARY_PATH", ""), str(binary.parent / "lib"), str(binary.parent)]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


def start(playwright: Playwright) -> Browser:
    """Starts Chromium with our flags, without its sandbox for root (containers)."""
    own = os.environ.get("ROLLSCOPE_TEST_CHROMIUM")
    binary = Path(own) if own else unpack()
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    return playwright.chromium.launch(executable_path=binary, args=flags, env={**environment(binary)})


def exposed(page: Page) -> Page:
    """The page, whose scripts will be reachable as `RS`; so will those of other pages of its context."""
    page.context.add_init_script(SCRIPTS)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium per module. Playwright runs an event loop in this thread, so other modules could not start theirs.

    If Chromium cannot start, the test fails, unless ROLLSCOPE_TEST_SKIP names ``browser``.
    """
    if "browser" in os.environ.get("ROLLSCOPE_TEST_SKIP", "").split(","):
        pytest.skip("ROLLSCOPE_TEST_SKIP names browser")
    with sync_playwright() as playwright:
        chromium = start(playwright)
        yield chromium
        chromium.close()
