"""Cells of the banner: the verdict in one sentence, or what is measured until there is one."""

import msgspec
from msgspec import structs

from dashboard.pages import verdict
from dashboard.state.format import money, parts, text, tight
from dashboard.state.run_state import WORDS, progress
from dashboard.state.status import StatusFacts, View, joined
from server.query.types import CAUSES, RunSummary, Verdict

PHASES = (("wait", "Wait"), ("compute", "Train"), ("overhead", "Overhead"))
_LIFECYCLES = {
    "starting": "Starting: loading and compiling take 10 to 40 minutes",
    "running": "Running",
    "paused": "Paused",
    "finished": "Finished",
    "crashed": "Crashed",
}
# Share of a finished run's time below which a limiter is not worth a word.
LEAST_SHARE = 0.05
STEPS = 2
"""Most changes that the card shows."""
LEAST_PART = 0.02
"""Share of the gap below which a limiter has no part of the bar."""


def banner(facts: StatusFacts) -> View:
    """Keys ``b.*``: chip, headline, text, what stands behind the verdict, the step split and what is measured.

    A verdict is shown as one only while it describes the present. Otherwise the banner shows the run's
    state, and below it the last verdict with its time.
    """
    if facts.at is not None:
        return _past(facts, facts.at) | _split(facts) | {"b.note": _note(facts)}
    if facts.present:
        found = _verdict(facts)
        cells = _NO_CLOCK | _chip(facts) | _headline(facts) | {"b.text": _text(facts)} | _cost(facts)
        cells |= verdict.behind(found) | next_steps(found)
    else:
        cells = _over(facts) if facts.over else _absent(facts)
    return cells | _split(facts) | {"b.note": _note(facts)}


_NO_CLOCK: View = {
    "b.kind": "state", "b.clock": None, "b.clock.w": "", "b.at": None, "b.at.w": "", "b.last": "", "b.last.at": None,
}  # fmt: skip
"""Cells of a banner that is not about the present."""
_NOTHING: View = {"b.x": [], "why": None, "gap": [], "advice": [], "advice.beyond": ""}
"""Cells of a banner without a verdict of the present: no evidence, and nothing to do."""


def _past(facts: StatusFacts, at: float) -> View:
    """Verdict and trainer wait at the end of a past time range: no cost, no advice."""
    found, wait = _verdict(facts), facts.value("trainer_wait_ratio")
    outcome, cause = found.outcome, found.cause
    named = found.named
    cells: View = {**_NO_CLOCK, "b.chip": verdict.word(outcome, cause), "b.chip.s": verdict.colour(outcome)}
    cells |= {"b.cause": verdict.because(cause) if named else "", "b.age": None}
    cells |= {"b.meta": verdict.confidence(found), "b.at.w": "as of", "b.at": at, "b.usd": "", "b.share": ""}
    has_wait = wait is not None
    cells |= {
        "b.head": "The trainer waited " if has_wait else "Trainer wait unknown",
        "b.tail": " of each step" if has_wait else "",
    }
    cells |= {
        "b.num": text(wait, "ratio") if has_wait else "",
        "b.text": "All numbers are as of the end of this time range.",
    }
    return cells | _NOTHING


def _absent(facts: StatusFacts) -> View:
    """Of a run that catches up, has no new data or no collector: no present verdict, no cost, nothing to try."""
    state, last = facts.status.state, _verdict(facts).last
    cells: View = {**_NO_CLOCK, "b.chip": WORDS[state.name], "b.chip.s": state.name, "b.cause": ""}
    cells |= {"b.meta": "", "b.age": None, "b.usd": "", "b.share": "", **_NOTHING}
    if state.name == "catching_up":
        done = text(state.progress, "ratio") if state.progress is not None else ""
        left = f"; {progress(structs.replace(state, progress=None))}" if state.seconds_left is not None else ""
        cells |= {"b.head": "Reading history" + (": " if done else ""), "b.num": done, "b.tail": left}
        cells["b.text"] = "No verdict, no advice and no alerts until the run has caught up."
        cells |= {"b.at.w": "numbers as of", "b.at": state.as_of}
    elif state.name == "stale":
        cells |= {"b.head": "No data yet" if state.since is None else "No new data since ", "b.num": "", "b.tail": ""}
        answer = any(target.up for target in facts.targets)
        silence = "The targets report nothing new" if answer else "No target answers"
        cells |= {"b.clock": state.since, "b.text": f"{silence}, so what the run does now is unknown."}
    else:
        never = state.since is None
        cells |= {"b.head": "Not collected yet" if never else "Not collected since ", "b.num": "", "b.tail": ""}
        cells["b.clock"] = state.since
        cells["b.text"] = "No collector follows this run, so what it does now is unknown."
    if last:
        cells["b.last"] = f"{verdict.named(last.outcome, last.cause)}. {tight(last.summary)}".strip()
        cells["b.last.at"] = last.as_of
    return cells


def _over(facts: StatusFacts) -> View:
    """A finished run in the past tense: how long, how much, and what held it back for how much of its time."""
    found, state = facts.status.summary, facts.status.state
    lifecycle = facts.status.lifecycle.capitalize()
    cells: View = {**_NO_CLOCK, "b.chip": lifecycle, "b.chip.s": "over", "b.cause": ""}
    cells |= {"b.meta": "", "b.age": None, **_NOTHING}
    cells |= {"b.at.w": "ended", "b.at": state.as_of} if state.as_of is not None else {}
    cells |= {"b.usd": "", "b.share": "", "b.num": "", "b.tail": ""}
    steps = f"last step {found.steps:,}" if found and found.steps is not None else ""
    lasted = text(found.seconds, "seconds") if found and found.seconds is not None else ""
    figures = " after ".join(filter(None, (steps, lasted)))
    reward = f"final reward {text(found.reward, '')}" if found and found.reward is not None else ""
    head = ", ".join(filter(None, (figures, reward)))
    cells["b.head"] = head[:1].upper() + head[1:] or f"{lifecycle}: no step was recorded"
    last = verdict.named(_verdict(facts).outcome, _verdict(facts).cause)
    end = f"At the end: {_low(last)}." if _named(facts) else ""
    cells["b.text"] = " ".join(filter(None, (_limits(found) if found else "", end)))
    if found and found.usd is not None:
        cells["b.usd"] = money(found.usd)
        idle = f", {money(found.idle_usd)} of it idle" if found.idle_usd is not None else ""
        cells["b.share"] = f"for the whole run at its mean hourly rate{idle}"
    return cells


def _low(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _limits(found: RunSummary) -> str:
    """``Limited by: sandbox-bound 61%, generator-bound 22%. Balanced 10%.``"""
    total = sum(found.limiters.values())
    if not total:
        return "No verdict was recorded."
    shares = sorted(((seconds / total, outcome) for outcome, seconds in found.limiters.items()), reverse=True)
    bound = [(share, outcome) for share, outcome in shares if outcome not in ("balanced", "unknown")]
    named = [f"{verdict.word(name).lower()} {text(share, 'ratio')}" for share, name in bound if share >= LEAST_SHARE]
    rest = {name: seconds / total for name, seconds in found.limiters.items() if name in ("balanced", "unknown")}
    sentences = [
        f"Limited by: {', '.join(named)} of the time." if named else "No limiter for more than 5% of the time."
    ]
    sentences += [f"Balanced {text(rest['balanced'], 'ratio')}."] if rest.get("balanced", 0) >= LEAST_SHARE else []
    sentences += [f"No verdict {text(rest['unknown'], 'ratio')}."] if rest.get("unknown", 0) >= LEAST_SHARE else []
    return " ".join(sentences)


def _verdict(facts: StatusFacts) -> Verdict:
    return facts.status.verdict


def _named(facts: StatusFacts) -> bool:
    """Whether the verdict is other than unknown."""
    return _verdict(facts).named


def _chip(facts: StatusFacts) -> View:
    found, state = _verdict(facts), facts.status.state
    outcome, cause = found.outcome, found.cause
    # A run with a verdict needs no word that it is running.
    lifecycle = "" if _named(facts) and facts.status.lifecycle == "running" else _lifecycle_words(facts)
    stale, named = state.name == "stale", _named(facts)
    cells: View = {
        "b.chip": WORDS["stale"] if stale and not named else verdict.word(outcome, cause),
        "b.chip.s": "stale" if stale and not named else verdict.colour(outcome),
        "b.cause": verdict.because(cause) if named else "",
        "b.meta": verdict.confidence(found) if stale else joined(lifecycle, verdict.confidence(found)),
        "b.age": None,
    }
    if stale:
        cells |= {"b.at.w": "newest data" if state.since is not None else "no data yet", "b.at": state.since}
    return cells


def _lifecycle_words(facts: StatusFacts) -> str:
    """The lifecycle in words. An engine that serves without a known trainer is not "starting"."""
    name = facts.status.lifecycle
    return "" if name == "starting" and _trainerless(facts) else _LIFECYCLES.get(name, name)


def _trainerless(facts: StatusFacts) -> bool:
    actors = {target.actor for target in facts.targets}
    return bool(actors) and "trainer" not in actors


def _headline(facts: StatusFacts) -> View:
    """``Generator-bound since 13:02: the KV cache is full``; without a verdict the trainer's wait."""
    found, wait = _verdict(facts), facts.value("trainer_wait_ratio")
    if found.named:
        meaning = CAUSES[found.outcome].get(found.cause or "", "")
        head: View = {"b.kind": "verdict", "b.head": "", "b.num": verdict.word(found.outcome, found.cause)}
        head |= {"b.clock.w": " since ", "b.clock": found.since} if found.since is not None else {}
        return head | {"b.tail": f": {meaning}" if meaning else ""}
    if wait is not None:
        before, figure, after = "The trainer waits ", text(wait, "ratio"), " of each step for rollouts"
    else:
        before, figure, after = _without_wait(facts)
    return {"b.head": before, "b.num": figure, "b.tail": after}


def _without_wait(facts: StatusFacts) -> tuple[str, str, str]:
    """Synchronous runs do not wait, they generate; the share of the step is the number that matters."""
    generation = facts.value("trainer_phase_seconds", phase="generation")
    shares = split(facts)
    if generation is not None and "wait" in shares:
        return "Generation takes ", text(shares["wait"], "ratio"), " of each step"
    step = facts.say("trainer_step_seconds")
    if step:
        return "A step takes ", step, "; trainer wait unknown"
    if _trainerless(facts):
        return "No trainer is monitored yet", "", ""
    silence = facts.silence("trainer_step_seconds")
    if silence:
        return silence[0].upper() + silence[1:], "", ""
    return "Not enough data yet", "", ""


def split(facts: StatusFacts) -> dict[str, float]:
    """Shares of the step by phase; empty until at least two phases are known."""
    waiting = facts.value("trainer_phase_seconds", phase="wait|generation")
    seconds = {"wait": waiting} | {
        phase: facts.value("trainer_phase_seconds", phase=phase) for phase in ("compute", "overhead")
    }
    measured = {phase: value for phase, value in seconds.items() if value is not None}
    total = sum(measured.values())
    return {phase: value / total for phase, value in measured.items()} if len(measured) > 1 and total > 0 else {}


def _split(facts: StatusFacts) -> View:
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
    # Whether there is room for it depends on the width of the page: the style sheet drops what would be cut.
    return f"{name} {text(share, 'ratio')}" if share is not None else ""


def _text(facts: StatusFacts) -> str:
    """Below the headline: the numbers; without a verdict why there is none, and what is measured."""
    summary = _verdict(facts).summary
    if not _named(facts):
        return joined(summary[:1].upper() + summary[1:], _measured(facts))
    wait, clauses = facts.value("trainer_wait_ratio"), [tight(clause) for clause in summary.split("; ")]
    # The headline names the limiter: "Generation limits the run: the trainer waits 61% of each step".
    clauses[0] = clauses[0].partition(": ")[2] or clauses[0]
    if wait is not None:
        # The card below shows the same signal; the summary has no decimals.
        clauses[0] = clauses[0].replace(f"trainer waits {wait:.0%} ", f"trainer waits {text(wait, 'ratio')} ")
    return " ".join(f"{clause[:1].upper()}{clause[1:]}." for clause in clauses)


def _measured(facts: StatusFacts) -> str:
    """Measured values without a cause, because only the verdict names one."""
    if not facts.signals:
        return "No signal has been computed for this run yet."
    details = joined(*(_of_synchronous(facts) if facts.synchronous else _of_queue(facts)))
    down = facts.down("generator")[1]
    means = "" if facts.synchronous else "5 min means: "
    measured = means + details if details else ""
    return joined(f"Engines: {down}" if down else "", measured) or _why(facts)


def _of_queue(facts: StatusFacts) -> list[str]:
    """Three means, as the bands use: an instant next to a mean would look like a contradiction."""
    batches, kv = facts.value("queue_batches"), facts.value("kv_cache_usage_ratio")
    waiting = facts.value("generator_requests", state="waiting")
    return [
        f"{text(batches, 'batches')} in the queue" if batches is not None else "",
        f"KV cache {text(kv, 'ratio')} full" if kv is not None else "",
        f"{parts(waiting, '')[0]} requests waiting in the engines" if waiting is not None else "",
    ]


def _of_synchronous(facts: StatusFacts) -> list[str]:
    """Without a wait and a queue, what wastes a step is what it is spent on."""
    truncated, zero = facts.value("truncation_ratio"), facts.value("zero_advantage_ratio")
    kv = facts.value("kv_cache_usage_ratio")
    return [
        f"{text(truncated, 'ratio')} of responses truncated" if truncated is not None else "",
        f"{text(zero, 'ratio')} of groups without a gradient" if zero is not None else "",
        f"KV cache {text(kv, 'ratio')} full" if kv is not None else "",
    ]


def _why(facts: StatusFacts) -> str:
    if _trainerless(facts):
        return "Add the trainer's run directory to see whether the trainer waits."
    if facts.silence("trainer_step_seconds"):
        return "Choose a longer time range to see the last steps."
    found = facts.find("trainer_wait_ratio")
    return found.why if found else ""


def _note(facts: StatusFacts) -> str:
    overhead = split(facts).get("overhead")
    done, able = facts.value("trainer_samples_per_second"), facts.value("capacity_samples_per_second")
    rate = text(done, "samples/s") if done is not None else ""
    if done is not None and able:
        could = "could have been" if facts.over else "could be"
        rate = f"{text(done, 'samples/s')}; without the wait it {could} {text(able, '')}"
    return joined(rate, f"overhead {text(overhead, 'ratio')}" if overhead is not None else "")


def _cost(facts: StatusFacts) -> View:
    """Keys ``b.usd``, ``b.share``: what idle GPUs cost; where nothing is priced, that it is not known."""
    dollars, bill = _verdict(facts).usd_per_hour, facts.find("cost_usd_per_hour")
    if dollars is None:
        unpriced = _named(facts) and bill is not None and bill.value is None
        return {"b.usd": "", "b.share": "Cost unknown: no GPU price is set" if unpriced else ""}
    share = f"idle, {text(dollars / bill.value, 'ratio')} of the bill" if bill is not None and bill.value else "idle"
    totals = [one.value for one in facts.signals if one.signal == "idle_usd_total" and one.value is not None]
    so_far = f"{money(sum(totals))} so far" if totals else ""
    least = "at least " if _verdict(facts).usd_lacks else ""
    return {"b.usd": f"{least}{money(dollars)}/h", "b.share": joined(share, so_far)}


def next_steps(found: Verdict) -> View:
    """Keys ``advice`` (the changes to make, with what the What-if page needs), ``advice.beyond`` (what limits next)
    and ``gap`` (what the trainer's missing samples are due to, largest first)."""
    changes = [{**msgspec.to_builtins(one), "simulate": verdict.simulated(one)} for one in found.advice[:STEPS]]
    ranked = sorted((one for one in found.limiters if one.share >= LEAST_PART), key=lambda one: -one.share)
    parts_ = [
        {"label": verdict.reason(one), "state": verdict.colour(one.outcome),
         "share": round(one.share, 3), "text": tight(one.text)}
        for one in ranked
    ]  # fmt: skip
    return {"advice": changes, "advice.beyond": verdict.beyond(found), "gap": parts_ if found.named else []}
