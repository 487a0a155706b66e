"""Estimates a changed run with the throughput model of the verdict. Pure arithmetic over `CurrentNumbers`.

Two sides meet at the queue. The trainer could take C samples/s, the generator's side could make P; trained is the
lesser of the two, and the trainer waits max(0, 1 - P / C) of its step. A change moves C or P by a law that is stated in
words; what a law does not know makes a figure a bound, and an input that is not known makes it unknown.
"""

from collections.abc import Callable

from server.verdict.what_if.changes import changed
from server.verdict.what_if.model import NOISE, Model, Notes, flipped
from server.verdict.what_if.types import FIGURES, NEEDS, Bound, Changes, CurrentNumbers, Figure, RunSituation, WhatIf


def what_if(now: CurrentNumbers, changes: Changes) -> WhatIf:
    """Returns today's figures and the estimate. Without a change both are the same object."""
    notes, given = Notes(), changes.from_today(now)
    today = _today(now, notes)
    before = _state(today, today, notes)
    if now.apart:
        notes.missing["mode"] = now.apart
    if not given or now.apart:
        return WhatIf(before, before, {}, tuple(notes.assumptions), notes.missing)
    later = changed(today, changes, notes)
    return WhatIf(before, _state(today, later, notes), dict(given), tuple(notes.assumptions), notes.missing)


def _today(now: CurrentNumbers, notes: Notes) -> Model:
    """Computes the sides of today from two of trained, wait and capacity; other pages show the first two."""
    trained, wait, capacity = now.trained, now.wait, now.capacity
    if now.apart:
        return Model(now, None, None)
    if trained is not None and wait is not None and wait < 1:
        capacity = trained / (1 - wait)
    elif trained is None and capacity is not None and wait is not None:
        trained = capacity * (1 - wait)
    if trained is None or not capacity:
        lacks = [name for name, value in (("trained", trained), ("wait", capacity)) if not value]
        notes.lack(*lacks)
        return Model(now, None, None, lacks=tuple(lacks))
    # A rate slightly above the capacity is noise between two windows.
    capacity = max(capacity, trained)
    is_equal = 1 - trained / capacity < NOISE
    return Model(now, capacity, trained, bound="at least" if is_equal else "", staleness=now.staleness)


# ---- figures


def _state(today: Model, model: Model, notes: Notes) -> RunSituation:
    makers: dict[str, Callable[[Model, Model], Figure]] = {
        "wait_ratio": _wait,
        "trained_samples_per_second": _trained,
        "useful_samples_per_second": _useful,
        "staleness_versions": _staleness,
        "step_seconds": _step,
        "usd_per_million_tokens": _cost,
        "idle_usd_per_hour": _idle,
        "trainer_could_take": lambda _, state: _rate(state, state.capacity, ""),
        "generator_could_make": lambda _, state: _rate(state, state.generated, state.bound),
    }
    figures = {name: maker(today, model) for name, maker in makers.items()}
    figures |= {name: _input(today.now, model, name, of) for name, of in _INPUTS.items()}
    if today.now.apart:
        figures = {name: Figure(None, FIGURES[name], "", today.now.apart) for name in figures}
    return RunSituation(model.limiter, figures)


_INPUTS = {
    "zero_advantage_ratio": "zero_advantage",
    "response_tokens": "response_tokens",
    "kv_concurrency_limit": "kv_ceiling",
    "trainer_gpus": "trainer_gpus",
    "generator_gpus": "generator_gpus",
}


def _input(today: CurrentNumbers, model: Model, name: str, of: str) -> Figure:
    """Returns a number of the run; if the changes make it unknown, their missing inputs are the reason."""
    value: float | None = getattr(model.now, of)
    if value is not None:
        return Figure(value, FIGURES[name])
    lost = getattr(today, of) is not None
    return _unknown(FIGURES[name], *((_lost_by(of, model)) if lost else (of,)))


def _lost_by(of: str, model: Model) -> tuple[str, ...]:
    return ("solve_ratio",) if of == "zero_advantage" else model.lacks


def _unknown(unit: str, *names: str) -> Figure:
    return Figure(None, unit, "", "; ".join(NEEDS.get(name, name) for name in dict.fromkeys(names)))


def _rate(model: Model, value: float | None, bound: Bound) -> Figure:
    unit = "samples/s"
    return _unknown(unit, *model.lacks) if value is None else Figure(value, unit, bound)


def _bound(today: Model, model: Model) -> Bound:
    """Returns the value for trained samples; today's value is measured."""
    return "" if model is today else model.trained_bound


def _wait(today: Model, model: Model) -> Figure:
    if model.wait is None:
        return _unknown("ratio", *model.lacks)
    return Figure(model.wait, "ratio", flipped(_bound(today, model)))


def _trained(today: Model, model: Model) -> Figure:
    return _rate(model, model.trained, _bound(today, model))


def _useful(today: Model, model: Model) -> Figure:
    """Returns the samples with a gradient."""
    now, trained = model.now, model.trained
    if trained is None or now.filtered:
        return _rate(model, trained, _bound(today, model))
    lacks = [name for name in ("zero_advantage", "filtered") if getattr(now, name) is None]
    if lacks and now.zero_advantage != 0:
        lost = "zero_advantage" in lacks and today.now.zero_advantage is not None
        return _unknown("samples/s", *("solve_ratio" if lost and name == "zero_advantage" else name for name in lacks))
    return Figure(trained * (1 - (now.zero_advantage or 0.0)), "samples/s", _bound(today, model))


def _staleness(today: Model, model: Model) -> Figure:
    if model.staleness is not None:
        return Figure(model.staleness, "versions", model.staleness_bound)
    return _unknown("versions", *(["staleness"] if model.now.staleness is None else ["max_staleness"]), *model.lacks)


def _step(today: Model, model: Model) -> Figure:
    now = model.now
    if now.step_seconds is None or not model.trained or today.trained is None:
        return _unknown("seconds", *(["step_seconds"] if now.step_seconds is None else []), *model.lacks)
    value = now.step_seconds * today.trained / model.trained
    return Figure(value, "seconds", flipped(_bound(today, model)))


# ---- money


def _cost(today: Model, model: Model) -> Figure:
    """Returns the cost of trained tokens: all GPUs are paid for, also idle ones."""
    unit, spent = "usd", _of_today(today)
    then, before, tokens = _gpus(model.now), _gpus(today.now), model.lengths
    if spent is None:
        names = ("usd_per_gpu_hour", "trainer_gpus", "generator_gpus", "response_tokens")
        return _unknown(unit, *(name for name in names if getattr(today.now, name) is None), *today.lacks)
    if not model.trained or not today.trained or not tokens:
        return _unknown(unit, *model.lacks)
    bill = then / before if then is not None and before else 1.0 if model.engines_as_now else None
    if bill is None:
        return _unknown(unit, "generator_gpus")
    return Figure(spent * bill * today.trained / (model.trained * tokens), unit, flipped(_bound(today, model)))


def _of_today(today: Model) -> float | None:
    """Returns the run's own number, else the price of the GPUs over trained tokens."""
    now, gpus = today.now, _gpus(today.now)
    if now.usd_per_million_tokens is not None or not today.trained:
        return now.usd_per_million_tokens
    if gpus is None or now.usd_per_gpu_hour is None or not now.response_tokens:
        return None
    return gpus * now.usd_per_gpu_hour / 3600 / (today.trained * now.response_tokens) * 1e6


def _gpus(now: CurrentNumbers) -> float | None:
    """Returns all GPUs, counted once if both sides share them."""
    trainer, generator = now.trainer_gpus, now.generator_gpus
    if now.one_pool:
        return max((count for count in (trainer, generator) if count is not None), default=None)
    return trainer + generator if trainer is not None and generator is not None else None


def _idle(today: Model, model: Model) -> Figure:
    """Returns the cost of the trainer's GPUs while it waits and of held generators; today's value as reported."""
    reported, unit = today.now.idle_usd_per_hour, "usd/h"
    before, after = _lost(today), _lost(model)
    if model is today and reported is not None:
        return Figure(reported, unit)
    if before is None or after is None:
        names = () if today.now.one_pool else ("usd_per_gpu_hour", "trainer_gpus", "generator_gpus")
        lacks = [name for name in names if getattr(model.now, name) is None]
        return _unknown(unit, *([today.now.one_pool] if today.now.one_pool else []), *lacks, *model.lacks)
    value = after if reported is None else max(0.0, reported + after - before)
    # The loss in held engines follows only from how much more they could generate.
    bound: Bound = "at least" if model.limiter == "trainer" and model.bound else flipped(_bound(today, model))
    return Figure(value, unit, bound)


def _lost(model: Model) -> float | None:
    now, wait = model.now, model.wait
    if now.usd_per_gpu_hour is None or now.trainer_gpus is None or now.generator_gpus is None or now.one_pool:
        return None
    if wait is None or not model.generated or model.trained is None:
        return None
    held_share = max(0.0, 1 - model.trained / model.generated)
    return (now.trainer_gpus * wait + now.generator_gpus * held_share) * now.usd_per_gpu_hour
