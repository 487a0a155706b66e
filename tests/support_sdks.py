"""Which interpreter has which provider's SDK. `make test` makes the environments from `requirements/sdks*.txt`.

ROLLSCOPE_TEST_SDKS names others, several joined by ``:``. An SDK that none of them has fails the test that needs it.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = (ROOT / ".venv-sdks" / "sdks", ROOT / ".venv-sdks" / "sdks-apart")


def environments() -> list[Path]:
    """Where SDKs are looked for, in this order."""
    named = [Path(name) for name in os.environ.get("ROLLSCOPE_TEST_SDKS", "").split(":") if name]
    return named or list(ENVIRONMENTS)


def python_with(module: str) -> str:
    """The interpreter of the first environment that has this import package; fails the test where there is none."""
    for venv in environments():
        if any(venv.glob(f"lib/python*/site-packages/{module}/__init__.py")):
            return str(venv / "bin" / "python")
    pytest.fail(f"none of {', '.join(map(str, environments()))} has {module}: run `make test`, which sets them up")
