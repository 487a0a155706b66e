"""The preflight report as plain data for the command line and the page: the plan and the result of every check."""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.preflight.checks import judge, outcome
from server.preflight.model import Inputs, PreflightPlan, worst
from server.preflight.probe import probe
from server.targets.discovery.model import RunSettings


def chosen(runs: Sequence[tuple[RunSettings, PreflightPlan]], names: Sequence[str]) -> list[str]:
    """The names to report on: all of them unless some were named.

    Raises:
        ConfigError: a name that is not configured.
    """
    configured = [run.name for run, _ in runs]
    strange = [name for name in names if name not in configured]
    if strange:
        names = ", ".join(configured) or "none; name them in the configuration (-c FILE)"
        raise ConfigError([f"preflight: no run is named {name!r}; configured: {names}" for name in strange])
    return [name for name in configured if not names or name in names]


def run(
    runs: Sequence[tuple[RunSettings, PreflightPlan]],
    over: PreflightPlan,
    clock: Clock,
    names: Sequence[str] = (),
    active_names: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the report as JSON data. Other runs are read too, because their sandboxes do not dangle.

    Args:
        runs: everything configured, each with its file's plan.
        over: the command line's plan.
        living: names of runs known to go on, these or others: what belongs to them is in use.

    Raises:
        ConfigError: a run that is not configured.
    """
    selected = chosen(runs, names)
    # Without a configuration nothing can be read, which is an answer too.
    planned = [(one, over.over(file_plan)) for one, file_plan in runs] or [
        (RunSettings("(no run is configured)"), over)
    ]
    inputs = [_alive(one, frozenset(active_names)) for one in probe(planned, clock)]
    results = [(one, judge(one)) for one in inputs if not selected or one.run in selected]
    reports = [
        {
            "run": one.run,
            "outcome": outcome(checks),
            "plan": finite(asdict(one.plan)),
            "checks": [finite(asdict(check)) for check in checks],
        }
        for one, checks in results
    ]
    return {"outcome": worst(outcome(checks) for _, checks in results), "now": clock.now(), "runs": reports}


def _alive(inputs_of_run: Inputs, active_names: frozenset[str]) -> Inputs:
    running = inputs_of_run.running or not inputs_of_run.keys.isdisjoint(active_names)
    return replace(inputs_of_run, running=running, alive=(inputs_of_run.alive | active_names) - inputs_of_run.keys)


def finite(value: Any) -> Any:
    """Replaces infinity, which JSON does not have, by "unlimited" as in the configuration."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return "unlimited" if isinstance(value, float) and not math.isfinite(value) else value
