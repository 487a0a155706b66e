"""Writes the generated pages below `docs/reference`; with ``--check`` it only names those that are out of date.

python -m bench.docs [--check]
"""

import argparse
import sys

from bench.docs.pages import PAGES
from bench.docs.site import ROOT, orphans

REFERENCE = ROOT / "docs" / "reference"


def outdated() -> list[str]:
    """Names of the pages whose file differs from what the code generates."""
    found = []
    for name, page in PAGES.items():
        path = REFERENCE / name
        if not path.is_file() or path.read_text("utf-8") != page():
            found.append(name)
    return found


def main() -> int:
    """Exit code 1: a page is missing in the menu, or with ``--check`` a page is out of date."""
    parser = argparse.ArgumentParser(prog="python -m bench.docs", description="write the generated reference pages")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    check = parser.parse_args().check
    names = outdated()
    for name in names:
        print(f"docs/reference/{name} {'is out of date: run python -m bench.docs' if check else 'written'}")
        if not check:
            (REFERENCE / name).write_text(PAGES[name](), "utf-8")
    for name in orphans():
        print(f"docs/{name} is not in the menu of zensical.toml")
    return int((check and bool(names)) or bool(orphans()))


if __name__ == "__main__":
    sys.exit(main())
