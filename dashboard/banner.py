"""The banner: one sentence on what holds the run back, or honestly what is measured until a verdict exists."""

from collections.abc import Mapping

from dashboard.facts import Facts, View, joined
from dashboard.format import parts, text
from dashboard.urlstate import OVER

PHASES = (("wait", "Wait"), ("compute", "Train"), ("overhead", "Overhead"))
_LIFE = {
    "starting": "Starting: loading and compiling take 10 to 40 minutes",
    "running": "Running",
    "paused": "Paused",
    "finished": "Finished",
    "crashed": "Crashed",
}


def banner(facts: Facts) -> View:
    """Keys ``b.*``: chip, headline, text, the step split and what is measured beside it."""
    return _chip(facts) | _headline(facts) | _split(facts) | {"b.text": _measured(facts), "b.note": _note(facts)}


def _verdict(facts: Facts) -> Mapping[str, object]:
    return facts.status.verdict or {}


def _chip(facts: Facts) -> View:
    life, verdict = facts.status.lifecycle, _verdict(facts)
    outcome = str(verdict.get("outcome", ""))
    word = outcome.replace("_", "-").capitalize() if outcome and outcome != "unknown" else "No verdict yet"
    over = life in OVER
    version = facts.value("policy_version")
    as_of = f"as of version {version:,.0f}" if version is not None else "as of its last point"
    return {
        "b.chip": life.capitalize() if over else word,
        "b.chip.s": "over" if over else "named" if word != "No verdict yet" else "none",
        "b.meta": joined(as_of if over else _LIFE.get(life, life), _confidence(verdict)),
        "b.age": facts.newest() if over else None,
    }


def _confidence(verdict: Mapping[str, object]) -> str:
    found = verdict.get("confidence")
    words = f"{found:.0%}" if isinstance(found, float) else str(found or "")
    return f"{words} confidence" if words else ""


def _headline(facts: Facts) -> View:
    summary = str(_verdict(facts).get("summary", ""))
    wait = facts.value("trainer_wait_ratio")
    if summary:
        before, figure, after = summary, "", ""
    elif wait is not None:
        verb = "waited" if facts.status.lifecycle in OVER else "waits"
        before, figure, after = f"The trainer {verb} ", text(wait, "ratio"), " of each step for rollouts"
    else:
        before, figure, after = _without_wait(facts)
    return {"b.head": before, "b.num": figure, "b.tail": after}


def _without_wait(facts: Facts) -> tuple[str, str, str]:
    """Synchronous runs do not wait, they generate; the share of the step is the number that matters."""
    generation = facts.value("trainer_phase_seconds", phase="generation")
    shares = split(facts)
    if generation is not None and "wait" in shares:
        return "Generation takes ", text(shares["wait"], "ratio"), " of each step"
    step = facts.say("trainer_step_seconds")
    if step:
        return "A step takes ", step, "; its wait is not known"
    return "Not enough measured to say more yet", "", ""


def split(facts: Facts) -> dict[str, float]:
    """Shares of the step by phase; empty until at least two phases are known."""
    waiting = facts.value("trainer_phase_seconds", phase="wait|generation")
    seconds = {"wait": waiting} | {
        phase: facts.value("trainer_phase_seconds", phase=phase) for phase in ("compute", "overhead")
    }
    known = {phase: value for phase, value in seconds.items() if value is not None}
    total = sum(known.values())
    return {phase: value / total for phase, value in known.items()} if len(known) > 1 and total > 0 else {}


def _split(facts: Facts) -> View:
    shares = split(facts)
    generates = facts.value("trainer_phase_seconds", phase="generation") is not None
    cells: View = {"b.split.s": "known" if shares else "unknown"}
    for phase, word in PHASES:
        share = shares.get(phase)
        name = "Generate" if phase == "wait" and generates else word
        cells[f"b.w.{phase}"] = round(100 * share, 1) if share is not None else 0
        cells[f"b.l.{phase}"] = _label(name, share)
    step = facts.say("trainer_step_seconds")
    cells["b.step"] = f"Last 10 steps, mean {step}" if step else "Step time unknown"
    return cells


def _label(name: str, share: float | None) -> str:
    # Text in a slice narrower than this would be cut in the middle of a word.
    return f"{name} {text(share, 'ratio')}" if share is not None and share >= 0.12 else ""


def _measured(facts: Facts) -> str:
    """Known states side by side, without a cause: naming one is the verdict's business."""
    evidence = _verdict(facts).get("evidence")
    if isinstance(evidence, (list, tuple)) and evidence:
        return joined(*(str(item) for item in evidence[:3] if isinstance(item, str)))
    if not facts.signals:
        return "No signal has been computed for this run yet."
    batches, kv = facts.value("queue_batches"), facts.value("kv_cache_usage_ratio")
    waiting = facts.value("generator_requests_now", state="waiting")
    words = [
        f"{text(batches, 'batches')} in the queue" if batches is not None else "",
        f"KV cache {text(kv, 'ratio')} full" if kv is not None else "",
        f"{parts(waiting, '')[0]} requests waiting in the engines" if waiting is not None else "",
    ]
    over = "At its end: " if facts.status.lifecycle in OVER else ""
    return over + joined(*words) if any(words) else _why(facts)


def _why(facts: Facts) -> str:
    found = facts.find("trainer_wait_ratio")
    return found.why if found else ""


def _note(facts: Facts) -> str:
    overhead = split(facts).get("overhead")
    done, able = facts.value("trainer_samples_per_second"), facts.value("capacity_samples_per_second")
    rate = ""
    if done is not None and able:
        rate = f"{text(done, 'samples/s')}; without the wait it could be {text(able, '')}"
    return joined(rate, f"overhead {text(overhead, 'ratio')}" if overhead is not None else "")


def next_steps(facts: Facts) -> list[str]:
    """What the verdict says to try; empty until there is one."""
    found = _verdict(facts).get("next")
    items = [found] if isinstance(found, str) else found if isinstance(found, (list, tuple)) else []
    return [str(item) for item in items if item][:3]
