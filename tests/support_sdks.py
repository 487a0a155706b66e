"""Finds the interpreter with a provider's SDK. `make test` makes the environments from `requirements/sdks*.txt`.

ROLLSCOPE_TEST_SDKS names other environments, joined by ``:``. If none of them has an SDK, the test that needs it fails.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = (ROOT / ".venv-sdks" / "sdks", ROOT / ".venv-sdks" / "sdks-apart")


def environments() -> list[Path]:
    """Environments that are searched for SDKs, in this order."""
    named = [Path(name) for name in os.environ.get("ROLLSCOPE_TEST_SDKS", "").split(":") if name]
    return named or list(ENVIRONMENTS)


def python_with(module: str) -> str:
    """The interpreter of the first environment with this import package; fails the test if there is none."""
    for venv in environments():
        if any(venv.glob(f"lib/python*/site-packages/{module}/__init__.py")):
            return str(venv / "bin" / "python")
    pytest.fail(f"none of {', '.join(map(str, environments()))} has {module}: run `make test`, which sets them up")
