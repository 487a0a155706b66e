"""Entry point: puts the program's packages first on the import path, then runs the command line.

In a wheel the packages `collectors`, `server`, `dashboard` and `migrations` are folders of this one, so that only one
name is installed. In a checkout they are next to it.
"""

import gc
import sys
from pathlib import Path

# Young objects before a garbage collection. Imports create many objects and no garbage: with the default of 700,
# collections are a sixth of the CPU time until `up` has served its first page.
YOUNG_OBJECTS = 50_000

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE if (_PACKAGE / "server").is_dir() else _PACKAGE.parent

# The packages have common names. Their folder is first, so that no `server/` or `collectors/` of PYTHONPATH, of the
# working directory or of another distribution is imported in their place.
sys.path.insert(0, str(_ROOT))


def main() -> int:
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    from server.main import main as run  # noqa: PLC0415 - needs the path above

    return run()
