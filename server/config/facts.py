"""Facts of a run from its sources: an assumed mode gives way to a reported one."""

import json
from collections.abc import Mapping


def trusted_facts(reported: Mapping[str, str | float], run: Mapping[str, str | float]) -> dict[str, str | float]:
    """The facts of one reading that may be added to those of the run.

    A mode has ``mode_assumed``, 1 or 0. An assumed mode is dropped if the run's mode was reported (0).
    """
    facts = dict(reported)
    if "mode" not in facts:
        return facts
    assumed = bool(facts.get("mode_assumed"))
    if assumed and run.get("mode_assumed") == 0.0:
        return {name: value for name, value in facts.items() if name not in ("mode", "mode_assumed")}
    return facts | {"mode_assumed": float(assumed)}


def stated(facts: Mapping[str, str | float]) -> Mapping[str, str | float]:
    """The user's facts; a stated mode is not assumed."""
    return {**facts, "mode_assumed": 0.0} if "mode" in facts else facts


def as_option(facts: Mapping[str, str | float]) -> tuple[tuple[str, str], ...]:
    """The user's facts as an option of the trainer's target, because its collector computes with them."""
    return (("facts", json.dumps(dict(facts), sort_keys=True)),) if facts else ()
