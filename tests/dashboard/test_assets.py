"""The browser's scripts share one object: a name that two of them define is one that works on the page loaded first."""

import re
from collections import Counter
from pathlib import Path

ASSETS = Path(__file__).parents[2] / "dashboard" / "assets"
DEFINED = re.compile(r"^\s*RS\.(\w+) = (?:async )?(?:function\b|\([^)]*\) =>|\w+ =>)", re.MULTILINE)


def test_each_function_is_defined_in_one_script() -> None:
    found = Counter(name for path in ASSETS.glob("*.js") for name in set(DEFINED.findall(path.read_text("utf-8"))))
    assert len(found) > 40
    assert [name for name, times in found.items() if times > 1] == []


def test_each_data_attribute_that_is_clicked_belongs_to_one_script() -> None:
    """A click is claimed with `closest("[data-x]")`: two scripts that claim the same one answer for each other."""
    claimed = re.compile(r"closest\(\"(\[data-[\w-]+\])\"\)")
    found = Counter(name for path in ASSETS.glob("*.js") for name in set(claimed.findall(path.read_text("utf-8"))))
    assert found and [name for name, times in found.items() if times > 1] == []
