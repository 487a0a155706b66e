"""How tests read the rollouts of prime-rl and verifiers, and the committed run of them."""

import os
import shutil
from pathlib import Path
from typing import Any

from collectors.model import Limits, Rollout
from collectors.rollouts.verifiers_rollouts import COLLECTOR
from tests.collectors._reading import TESTDATA
from tests.collectors.rollouts._episodes import BEGAN
from tests.collectors.rollouts._written import merged, tailed

LATER = BEGAN + 10_000
RUN = TESTDATA / "verifiers_rollouts" / "async"


def read(path: Path, cursor: Any = None, now: float = LATER, **limits: int) -> tuple[dict[str, Rollout], Any]:
    found, at, _ = tailed(COLLECTOR, path, now, Limits(**limits), cursor)
    return merged(found), at


def exits(rollouts: dict[str, Rollout]) -> dict[str, str]:
    return {name: one.exit for name, one in rollouts.items() if one.exit is not None}


def committed(folder: Path) -> Path:
    """The committed run, copied into a folder; its batches dated as they were written."""
    run = folder / "run"
    shutil.copytree(RUN, run)
    for step, at in ((1, BEGAN + 100), (2, BEGAN + 250)):
        os.utime(run / f"rollouts/step_{step}/train/effective/traces.jsonl", (at, at))
    return run
