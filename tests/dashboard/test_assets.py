"""The browser's modules share no global object, and the entry reaches all of them."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "dashboard" / "assets"
MODULES = {path.relative_to(ASSETS).as_posix(): path.read_text("utf-8") for path in ASSETS.rglob("*.mjs")}
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def test_no_module_sets_a_global() -> None:
    """Dash requires one: the callbacks that run in the browser."""
    found = re.compile(r"\b(?:window|globalThis|self)\.(\w+) (?:\|\||\?\?)?= ")
    assert [(name, one) for name, text in MODULES.items() for one in found.findall(text)] == [
        ("main.mjs", "dash_clientside")
    ]


def test_the_entry_exports_every_module_and_each_name_once() -> None:
    """Of a name that two modules export, `export *` exports neither. `format.mjs` is exported as a whole."""
    entry = MODULES["main.mjs"]
    assert {name for name in MODULES if f'"./{name}"' not in entry} == {"main.mjs"}
    texts = [text for name, text in MODULES.items() if name != "core/format.mjs"]
    found = Counter(one for text in texts for one in EXPORTED.findall(text))
    assert len(found) > 100
    assert [name for name, times in found.items() if times > 1] == []


def test_the_entry_imports_every_style_sheet() -> None:
    styles = sorted(path.name for path in ASSETS.glob("*.css") if path.name != "main.css")
    assert (ASSETS / "main.css").read_text("utf-8").splitlines() == [f'@import "{name}";' for name in styles]


def test_each_data_attribute_that_is_clicked_belongs_to_one_module() -> None:
    """A click is claimed with `closest("[data-x]")`: two modules that claim the same one answer for each other."""
    claimed = re.compile(r"closest\(\"(\[data-[\w-]+\])\"\)")
    found = Counter(one for text in MODULES.values() for one in set(claimed.findall(text)))
    assert found and [name for name, times in found.items() if times > 1] == []


@pytest.mark.process
def test_the_tests_of_the_modules_pass() -> None:
    """`tests/js`, by Node's own runner: numbers and points by hand, and that the entry can be loaded."""
    files = sorted(str(path) for path in (ROOT / "tests" / "js").glob("*.test.mjs"))
    done = subprocess.run(["node", "--test", *files], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files) >= 3 and re.search(r"^\S+ fail 0$", done.stdout, re.MULTILINE)
