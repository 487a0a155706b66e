"""Facts of a run as its sources tell them: what one of them only assumes gives way to what another one knows."""

import json
from collections.abc import Mapping


def trusted_facts(told: Mapping[str, str | float], known: Mapping[str, str | float]) -> dict[str, str | float]:
    """The facts of one reading, beside those already ``known`` of the run.

    A mode comes with ``mode_assumed``, 1 or 0; an assumed one is left out where the run's is told (0) already.
    """
    found = dict(told)
    if "mode" not in found:
        return found
    assumed = bool(found.get("mode_assumed"))
    if assumed and known.get("mode_assumed") == 0.0:
        return {name: value for name, value in found.items() if name not in ("mode", "mode_assumed")}
    return found | {"mode_assumed": float(assumed)}


def stated(facts: Mapping[str, str | float]) -> Mapping[str, str | float]:
    """What the user states of a run is assumed by nobody."""
    return {**facts, "mode_assumed": 0.0} if "mode" in facts else facts


def as_option(facts: Mapping[str, str | float]) -> tuple[tuple[str, str], ...]:
    """What the user states, as an option of the trainer's target: its collector works with it."""
    return (("facts", json.dumps(dict(facts), sort_keys=True)),) if facts else ()
