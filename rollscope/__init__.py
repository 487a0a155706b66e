"""Entry point: puts the program's packages first on the import path, then runs the command line.

In a wheel the packages `collectors`, `server`, `dashboard` and `migrations` are folders of this one, so that only one
name is installed. In a checkout they are next to it.
"""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE if (_PACKAGE / "server").is_dir() else _PACKAGE.parent

# The packages have common names. Their folder is first, so that no `server/` or `collectors/` of PYTHONPATH, of the
# working directory or of another distribution is imported in their place.
sys.path.insert(0, str(_ROOT))


def main() -> int:
    from server.main import main as run  # noqa: PLC0415 - needs the path above

    return run()
