"""The dashboard's own scripts and styles: one file each if they were bundled from these sources, else the sources.

`make setup` bundles with ``python -m dashboard.bundle ESBUILD``. The first line of a bundle has the SHA-256 of its
sources. A browser loads modules itself, so the dashboard also works without a bundle, with more requests.
"""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
VENDOR = Path(__file__).parent / "vendor"
# The entries below `ASSETS`, and what esbuild makes of them below `VENDOR`.
SCRIPT, STYLE = "main.mjs", "main.css"
BUNDLED = {SCRIPT: "rollscope.min.mjs", STYLE: "rollscope.min.css"}
# Addresses in the style sheets, as of the font, stay relative to the assets.
OPTIONS = ("--bundle", "--minify", "--format=esm", "--target=es2022", "--external:*.woff2", "--log-level=warning")


@dataclass(frozen=True, slots=True)
class Entries:
    """What the document names, as addresses below the assets; ``files``: contents of those that are no asset."""

    script: str
    style: str
    files: dict[str, bytes]


def fingerprint(assets: Path = ASSETS) -> str:
    """SHA-256 of names and contents of all modules and style sheets, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(path for path in assets.rglob("*") if path.suffix in (".mjs", ".css")):
        body = path.read_bytes()
        digest.update(f"{path.relative_to(assets).as_posix()} {len(body)}\n".encode() + body)
    return digest.hexdigest()


def entries() -> Entries:
    """The bundles if both were made from the present sources, else the sources. All addresses have a fingerprint."""
    now = fingerprint()
    try:
        found = {name: (VENDOR / name).read_bytes() for name in BUNDLED.values()}
    except OSError:
        found = {}
    whole = bool(found) and all(body.split(b"\n", 1)[0] == _mark(now).encode() for body in found.values())
    script, style = (BUNDLED[name] if whole else name for name in (SCRIPT, STYLE))
    return Entries(f"{script}?m={now[:16]}", f"{style}?m={now[:16]}", found if whole else {})


def _mark(digest: str) -> str:
    return f"/* sources: {digest} */"


def bundle(esbuild: str) -> None:
    """Writes both bundles into `VENDOR`."""
    VENDOR.mkdir(exist_ok=True)
    mark = _mark(fingerprint())
    for entry, name in BUNDLED.items():
        made = subprocess.run([esbuild, str(ASSETS / entry), *OPTIONS], stdout=subprocess.PIPE, check=True).stdout
        (VENDOR / name).write_bytes(mark.encode() + b"\n" + made)


if __name__ == "__main__":
    bundle(sys.argv[1])
