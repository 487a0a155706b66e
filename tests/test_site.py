"""The documentation site: built strictly, and complete without another host.

`make test` makes the environment from `requirements/docs.txt`. Where it is missing the test fails.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATOR = ROOT / ".venv-docs" / "bin" / "zensical"
# A link that a reader may follow is fine; what a page loads by itself is not.
LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]+(?:src|srcset)="https?:|<link[^>]+href="https?:(?![^>]*canonical)'
)


def built(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The site of a copy of the checkout's pages in ``folder``."""
    if not GENERATOR.exists():
        pytest.fail(f"no {GENERATOR}: run `make docs`, which sets it up")
    command = [str(GENERATOR), "build", "--strict", "--config-file", str(folder / "zensical.toml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    return tmp_path


def test_the_site_is_built_and_loads_nothing_from_elsewhere(pages: Path) -> None:
    done = built(pages)
    assert done.returncode == 0, done.stdout + done.stderr
    site = pages / ".cache" / "site"
    assert (site / "search.json").stat().st_size > 100_000
    for page in site.rglob("*.html"):
        assert LOADED.findall(page.read_text("utf-8")) == [], page


def test_a_broken_link_fails_the_build(pages: Path) -> None:
    with (pages / "docs" / "index.md").open("a") as file:
        file.write("\n[nowhere](nowhere.md)\n")
    done = built(pages)
    assert done.returncode != 0 and "page does not exist" in done.stdout + done.stderr
