"""Writes the generated pages below `docs`; with ``--check`` it only names those that are out of date.

With ``--openapi`` it also renews the copy of the OpenAPI document that a test compares: its shapes are a contract.

python -m bench.docs [--check] [--openapi]
"""

import argparse
import json
import sys

from bench.docs.pages import PAGES, openapi
from bench.docs.site import ROOT, orphans

DOCS = ROOT / "docs"
OPENAPI = ROOT / "tests" / "api" / "openapi.json"


def outdated() -> list[str]:
    """Names of the pages whose file differs from what the code generates."""
    found = []
    for name, page in PAGES.items():
        path = DOCS / name
        if not path.is_file() or path.read_text("utf-8") != page():
            found.append(name)
    return found


def openapi_text() -> str:
    """The OpenAPI document as the copy has it."""
    return json.dumps(openapi(), indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Exit code 1: a page is missing in the menu, or with ``--check`` a page is out of date."""
    parser = argparse.ArgumentParser(prog="python -m bench.docs", description="write the generated pages")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    parser.add_argument("--openapi", action="store_true", help=f"also write {OPENAPI.relative_to(ROOT)}")
    arguments = parser.parse_args()
    check = arguments.check
    if arguments.openapi:
        OPENAPI.write_text(openapi_text(), "utf-8")
    names = outdated()
    for name in names:
        print(f"docs/{name} {'is out of date: run python -m bench.docs' if check else 'written'}")
        if not check:
            (DOCS / name).write_text(PAGES[name](), "utf-8")
    for name in orphans():
        print(f"docs/{name} is not in the menu of zensical.toml")
    return int((check and bool(names)) or bool(orphans()))


if __name__ == "__main__":
    sys.exit(main())
