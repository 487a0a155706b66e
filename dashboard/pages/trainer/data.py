"""The Trainer page as cells: phases of the steps, capacity, and learning."""

from collections.abc import Sequence

from msgspec import structs

from dashboard.charts.panels import LENGTH, REWARD, STALENESS
from dashboard.pages.trainer import gradient, scores, steps, weight_update
from dashboard.pages.verdict import because, named
from dashboard.shell.page import Scope
from dashboard.widgets import card, chart
from dashboard.widgets.base import Headline, Part, Quantity, state_word
from dashboard.widgets.card import Card, CardNow
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import text
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import StatusFacts, View, joined, worst
from server.query.types import StepInfo

_OVERHEAD = "trainer_overhead_seconds"
_STALENESS = "staleness_versions"

CARDS: tuple[Card, ...] = (
    Card("tr_step", "Step time", "blue", (want("trainer_step_seconds"),)),
    Card("tr_wait", "Wait", "orange", (want("trainer_wait_ratio"),)),
    Card("tr_mfu", "MFU", "blue", (want("trainer_mfu_ratio", basis="wall|busy"), want("trainer_mfu_ratio"))),
    Card(
        "tr_rate",
        "Trained",
        "blue",
        (want("trainer_samples_per_second"),),
        notes=(("capacity", want("capacity_samples_per_second")),),
    ),
    Card(
        "tr_sync",
        "Weight sync",
        "plum",
        (want("weight_sync_seconds"),),
        judges=(want("weight_sync_ratio"),),
        notes=(("of the step", want("weight_sync_ratio")),),
    ),
    Card(
        "tr_stale",
        "Staleness",
        "blue",
        (want(_STALENESS, level="trajectory", stat="mean"), want(_STALENESS)),
        notes=(("max", want(_STALENESS, level="trajectory", stat="max")),),
    ),
    Card("tr_reward", "Reward", "blue", (want("reward", stat="mean"), want("reward"))),
    Card("tr_entropy", "Entropy", "blue", (want("entropy"),)),
)

PANELS: tuple[Panel, ...] = (
    Panel(
        "tphase",
        "Where each step goes",
        "seconds, mean of 10 steps",
        "seconds",
        (
            PanelLine("wait", want("trainer_phase_seconds", phase="wait|generation"), "orange", named_by="phase"),
            PanelLine("compute", want("trainer_phase_seconds", phase="compute"), "blue"),
            PanelLine("weight sync", want(_OVERHEAD, phase="weight_sync"), "plum"),
            PanelLine("checkpoint", want(_OVERHEAD, phase="checkpoint"), "gold"),
            PanelLine("evaluation", want(_OVERHEAD, phase="eval"), "teal"),
            PanelLine("other", want(_OVERHEAD, phase="other"), "grey"),
        ),
        kind="stack",
    ),
    Panel(
        "trate",
        "Rate and capacity",
        "samples/s",
        "samples/s",
        (
            PanelLine("trained", want("trainer_samples_per_second"), "blue", "zero"),
            PanelLine("capacity", want("capacity_samples_per_second"), "grey"),
            PanelLine("produced", want("production_samples_per_second"), "orange", thin=True),
        ),
    ),
    Panel(
        "tstep",
        "Step time",
        "mean of 10 steps",
        "seconds",
        (PanelLine("step", want("trainer_step_seconds"), "blue", "zero", envelope=True),),
    ),
    Panel(
        "tmfu",
        "MFU by basis",
        "% of peak",
        "ratio",
        (
            PanelLine("whole step", want("trainer_mfu_ratio", basis="wall"), "blue"),
            PanelLine("while computing", want("trainer_mfu_ratio", basis="busy"), "grey"),
        ),
    ),
    Panel(
        "tsync",
        "Weight sync",
        "seconds",
        "seconds",
        (
            PanelLine("per step", want("weight_sync_seconds"), "plum", "zero"),
            PanelLine("engines paused in 5 min", want("generator_weight_stall_seconds", stat="max"), "grey", thin=True),
        ),
    ),
    Panel(
        "tstale",
        "Staleness",
        "versions behind",
        "versions",
        STALENESS,
        limits="bound",
    ),
    Panel("treward", "Reward", "mean per step", "reward", REWARD, from_zero=False),
    Panel("tlr", "Learning rate", "of the newest step", "", (PanelLine("rate", want("learning_rate"), "grey"),)),
    Panel(
        "tlength",
        "Response length",
        "tokens",
        "tokens",
        LENGTH,
    ),
    Panel(
        "ttrunc",
        "Truncated",
        "% of responses",
        "ratio",
        (PanelLine("truncated", want("truncation_ratio"), "orange", "zero"),),
        limits="truncation_ratio",
    ),
    *scores.PANELS,
    *gradient.PANELS,
    *weight_update.PANELS,
)


def cells(scope: Scope) -> View:
    """All texts of the page."""
    facts, infos, found = scope.facts, scope.reader.signals.infos, steps.read(scope)
    cards = card.bind_all(CARDS, facts, infos)
    if note := _mfu(facts):
        cards["tr_mfu"] = structs.replace(cards["tr_mfu"], note=note)
    cards["tr_step"] = _step(cards["tr_step"], facts, found)
    view = card.cells(cards) | chart.cells(chart.bind_all(PANELS, facts, infos)) | _head(facts, found)
    view |= steps.one_by_one(found) | steps.last_against_usual(found) | steps.table(found)
    view |= gradient.trusted(scope, found) | weight_update.anatomy(scope) | scores.cells(scope)
    return view | steps.learning(found) | steps.incarnations(scope, found)


def _head(facts: StatusFacts, found: Sequence[StepInfo]) -> View:
    """The answer in one line with the mean step by phase; in a synchronous run what there is instead of a wait."""
    step = facts.say("trainer_step_seconds")
    return {
        "head.trainer": structs.replace(_answer(facts, found), text=_beside(facts, found), split=_split(facts)),
        "trainer.sync": _of_mode(facts),
        "trainer.step": f"Last 10 steps, mean {step}" if step else "Step time unknown",
    }


def _answer(facts: StatusFacts, found: Sequence[StepInfo]) -> Headline:
    wait, step = facts.find("trainer_wait_ratio"), facts.value("trainer_step_seconds")
    generation = facts.value("trainer_phase_seconds", phase="generation")
    broken = facts.value("gradient_nonfinite_steps")
    if broken:
        return Headline("Non-finite gradients in ", Quantity(broken), " of the last 10 steps", state="critical")
    if wait is not None and wait.value is not None:
        verb = "waited" if facts.over else "waits"
        return Headline(f"The trainer {verb} ", Quantity(wait.value, "ratio"), " of each step", state=wait.state)
    if generation is not None and step:
        verb = "took" if facts.over else "takes"
        return Headline(f"Generation {verb} ", Quantity(generation / step, "ratio"), " of each step", state="ok")
    if step is not None:
        return Headline(f"A step {'took' if facts.over else 'takes'} ", Quantity(step, "seconds"), state="ok")
    silence = facts.silence("trainer_step_seconds")
    if silence:
        return Headline(silence[0].upper() + silence[1:], state="unknown")
    if found:
        return Headline("Too few steps so far", state="unknown")
    return Headline("No step yet" if facts.kinds("trainer") else "No trainer is monitored", state="unknown")


def _beside(facts: StatusFacts, found: Sequence[StepInfo]) -> str:
    verdict = facts.status.verdict
    outcome, cause = verdict.outcome, verdict.cause
    limits = {"trainer_bound", "overhead_bound"}
    done, able = facts.value("trainer_samples_per_second"), facts.value("capacity_samples_per_second")
    rate = f"{'Trained' if facts.over else 'Training'} {text(done, 'samples/s')}" if done is not None else ""
    if rate and able:
        rate += f"; it could {'have handled' if facts.over else 'handle'} {text(able, '')}"
    judged, be = "", "was" if facts.over else "is"
    if outcome in limits:
        judged = f"The trainer {be} the limit" + (f": {because(cause)}" if cause else "")
    elif outcome != "unknown":
        judged = f"Not the limit: the run {be} {_low(named(outcome, cause))}"
    if not rate and not judged and facts.value("trainer_step_seconds") is None:
        wait = facts.find("trainer_step_seconds")
        return wait.why if wait is not None else "Add the trainer's run directory or its metrics."
    return joined(judged, rate)


def _low(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _of_mode(facts: StatusFacts) -> str:
    """Why there is no wait, where the mode has none."""
    wait = facts.find("trainer_wait_ratio")
    if wait is None or wait.state != "not_applicable":
        return ""
    return f"Wait: not applicable. {wait.why[:1].upper()}{wait.why[1:]}."


_SLICES = {"wait": "Wait", "compute": "Train", "weight_sync": "Sync", "checkpoint": "Checkpoint", "eval": "Evaluate",
           "other": "Other"}  # fmt: skip


def _split(facts: StatusFacts) -> tuple[Part, ...]:
    """Shares of the mean step by phase; none until at least two are known."""
    seconds = {"wait": facts.value("trainer_phase_seconds", phase="wait|generation"),
               "compute": facts.value("trainer_phase_seconds", phase="compute")}  # fmt: skip
    seconds |= {key: facts.value(_OVERHEAD, phase=key) for key in list(_SLICES)[2:]}
    measured = {key: value for key, value in seconds.items() if value is not None}
    total = sum(measured.values())
    if len(measured) < 2 or total <= 0:
        return ()
    generates = facts.value("trainer_phase_seconds", phase="generation") is not None
    words = {**_SLICES, "wait": "Generate"} if generates else _SLICES
    return tuple(Part(key, words[key], round(value / total, 3)) for key, value in measured.items())


def _mfu(facts: StatusFacts) -> str:
    """By which basis: the two must never be mixed."""
    found = facts.find("trainer_mfu_ratio", basis="wall|busy")
    if found is None or found.value is None:
        return ""
    bases = {"wall": "of the whole step", "busy": "while computing"}
    other = facts.say("trainer_mfu_ratio", basis="busy") if found.labels.get("basis") == "wall" else ""
    return joined(bases.get(found.labels.get("basis", ""), ""), f"{other} while computing" if other else "")


def _step(shown: CardNow, facts: StatusFacts, found: Sequence[StepInfo]) -> CardNow:
    """The newest step and the median, in the card of the mean."""
    last = steps.took(found[-1]) if found else None
    if last is None or shown.value is None:
        return shown
    middle = steps.usual(found, "trainer_step_seconds")
    far = middle is not None and last > steps.FAR * middle
    state = worst((facts.state("trainer_step_seconds"), "watch" if far else "ok"))
    note = joined(f"last {text(last, 'seconds')}", f"median {text(middle, 'seconds')}" if middle is not None else "")
    return structs.replace(shown, note=note, state=state, word=state_word(facts, state) if state != "ok" else "")
