"""The answer card: the verdict in one sentence, or what is measured until there is one."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from dashboard.pages import verdict
from dashboard.state.run_state import WORDS, progress
from dashboard.widgets.base import Part, Quantity
from dashboard.widgets.format import money, parts, text, tight
from dashboard.widgets.status import StatusFacts, joined
from server.query.types import CAUSES, RunSummary, Verdict

PHASES: Mapping[str, str] = {"wait": "Wait", "compute": "Train", "overhead": "Overhead"}
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


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer card. Times are epoch seconds.

    Attributes:
        kind: "verdict" for one of the present, else "state": the chip then shows the run's state.
        before, figure, clock_word, clock, after: the headline in its parts.
        at_word, at: of what time the numbers are.
        last, last_at: the last verdict of a run that has none now.
        usd, share: what idle GPUs cost.
        split: the step by phase; ``step`` and ``note`` state its time and rates.
        advice, beyond: the changes to make, and what limits next.
        gap: what the trainer's missing samples are due to, largest first.
        why: what the verdict rests on.
    """

    chip: str
    chip_state: str
    kind: str = "state"
    cause: str = ""
    before: str = ""
    figure: Quantity | None = None
    clock_word: str = ""
    clock: float | None = None
    after: str = ""
    text: str = ""
    meta: str = ""
    at_word: str = ""
    at: float | None = None
    last: str = ""
    last_at: float | None = None
    usd: Quantity | None = None
    share: str = ""
    split: tuple[Part, ...] = ()
    step: str = ""
    note: str = ""
    contradictions: tuple[str, ...] = ()
    advice: tuple[dict[str, Any], ...] = ()
    beyond: str = ""
    gap: tuple[dict[str, Any], ...] = ()
    why: dict[str, list[str]] | None = None


def banner(facts: StatusFacts) -> Answer:
    """A verdict is shown as one only while it describes the present. Otherwise the card shows the run's state, and the
    last verdict with its time.
    """
    if facts.at is not None:
        answer = _past(facts, facts.at)
    elif facts.present:
        answer = _present(facts)
    else:
        answer = _over(facts) if facts.over else _absent(facts)
    step = facts.say("trainer_step_seconds")
    step = f"Last 10 steps, mean {step}" if step else "Step time unknown"
    return structs.replace(answer, split=_split(facts), step=step, note=_note(facts))


def _past(facts: StatusFacts, at: float) -> Answer:
    """Verdict and trainer wait at the end of a past time range: no cost, no advice."""
    found, wait = _verdict(facts), facts.value("trainer_wait_ratio")
    known = wait is not None
    return Answer(
        chip=verdict.word(found.outcome, found.cause),
        chip_state=verdict.colour(found.outcome),
        cause=verdict.because(found.cause) if found.named else "",
        meta=verdict.confidence(found),
        at_word="as of",
        at=at,
        before="The trainer waited " if known else "Trainer wait unknown",
        figure=Quantity(wait, "ratio") if known else None,
        after=" of each step" if known else "",
        text="All numbers are as of the end of this time range.",
    )


def _absent(facts: StatusFacts) -> Answer:
    """Of a run that catches up, has no new data or no collector: no present verdict, no cost, nothing to try."""
    state, last = facts.status.state, _verdict(facts).last
    answer = Answer(chip=WORDS[state.name], chip_state=state.name)
    if state.name == "catching_up":
        known = state.progress is not None
        answer = structs.replace(
            answer,
            before="Reading history" + (": " if known else ""),
            figure=Quantity(state.progress, "ratio") if known else None,
            after=f"; {progress(structs.replace(state, progress=None))}" if state.seconds_left is not None else "",
            text="No verdict, no advice and no alerts until the run has caught up.",
            at_word="numbers as of",
            at=state.as_of,
        )
    elif state.name == "stale":
        answers = any(target.up for target in facts.targets)
        silence = "The targets report nothing new" if answers else "No target answers"
        answer = structs.replace(
            answer,
            before="No data yet" if state.since is None else "No new data since ",
            clock=state.since,
            text=f"{silence}, so what the run does now is unknown.",
        )
    else:
        answer = structs.replace(
            answer,
            before="Not collected yet" if state.since is None else "Not collected since ",
            clock=state.since,
            text="No collector follows this run, so what it does now is unknown.",
        )
    if not last:
        return answer
    sentence = f"{verdict.named(last.outcome, last.cause)}. {tight(last.summary)}".strip()
    return structs.replace(answer, last=sentence, last_at=last.as_of)


def _over(facts: StatusFacts) -> Answer:
    """A finished run in the past tense: how long, how much, and what held it back for how much of its time."""
    found, state = facts.status.summary, facts.status.state
    lifecycle = facts.status.lifecycle.capitalize()
    steps = f"last step {found.steps:,}" if found and found.steps is not None else ""
    lasted = text(found.seconds, "seconds") if found and found.seconds is not None else ""
    reward = f"final reward {text(found.reward, '')}" if found and found.reward is not None else ""
    head = ", ".join(filter(None, (" after ".join(filter(None, (steps, lasted))), reward)))
    last = verdict.named(_verdict(facts).outcome, _verdict(facts).cause)
    end = f"At the end: {_low(last)}." if _verdict(facts).named else ""
    idle = f", {money(found.idle_usd)} of it idle" if found and found.idle_usd is not None else ""
    priced = found is not None and found.usd is not None
    return Answer(
        chip=lifecycle,
        chip_state="over",
        at_word="ended" if state.as_of is not None else "",
        at=state.as_of,
        before=head[:1].upper() + head[1:] or f"{lifecycle}: no step was recorded",
        text=" ".join(filter(None, (_limits(found) if found else "", end))),
        usd=Quantity(found.usd, "usd") if found is not None and priced else None,
        share=f"for the whole run at its mean hourly rate{idle}" if priced else "",
    )


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


def _present(facts: StatusFacts) -> Answer:
    """The verdict of the present, or why there is none; with its evidence, what to do, and what it costs."""
    found, state = _verdict(facts), facts.status.state
    # A run with a verdict needs no word that it is running.
    lifecycle = "" if found.named and facts.status.lifecycle == "running" else _lifecycle_words(facts)
    stale = state.name == "stale"
    unjudged = stale and not found.named
    answer = Answer(
        chip=WORDS["stale"] if unjudged else verdict.word(found.outcome, found.cause),
        chip_state="stale" if unjudged else verdict.colour(found.outcome),
        cause=verdict.because(found.cause) if found.named else "",
        meta=verdict.confidence(found) if stale else joined(lifecycle, verdict.confidence(found)),
        at_word=("newest data" if state.since is not None else "no data yet") if stale else "",
        at=state.since if stale else None,
        text=_text(facts),
        contradictions=verdict.contradictions(found),
        why=verdict.why(found),
        advice=tuple({**msgspec.to_builtins(one), "simulate": verdict.simulated(one)} for one in found.advice[:STEPS]),
        beyond=verdict.beyond(found),
        gap=_gap(found),
    )
    return structs.replace(answer, **_headline(facts), **_cost(facts))


def _lifecycle_words(facts: StatusFacts) -> str:
    """The lifecycle in words. An engine that serves without a known trainer is not "starting"."""
    name = facts.status.lifecycle
    return "" if name == "starting" and _trainerless(facts) else _LIFECYCLES.get(name, name)


def _trainerless(facts: StatusFacts) -> bool:
    actors = {target.actor for target in facts.targets}
    return bool(actors) and "trainer" not in actors


def _headline(facts: StatusFacts) -> dict[str, Any]:
    """``Generator-bound since 13:02: the KV cache is full``; without a verdict the trainer's wait."""
    found, wait = _verdict(facts), facts.value("trainer_wait_ratio")
    if found.named:
        meaning = CAUSES[found.outcome].get(found.cause or "", "")
        return {
            "kind": "verdict",
            "figure": Quantity(text=verdict.word(found.outcome, found.cause)),
            "clock_word": " since " if found.since is not None else "",
            "clock": found.since,
            "after": f": {meaning}" if meaning else "",
        }
    if wait is not None:
        after = " of each step for rollouts"
        return {"before": "The trainer waits ", "figure": Quantity(wait, "ratio"), "after": after}
    before, figure, after = _without_wait(facts)
    return {"before": before, "figure": figure, "after": after}


def _without_wait(facts: StatusFacts) -> tuple[str, Quantity | None, str]:
    """Synchronous runs do not wait, they generate; the share of the step is the number that matters."""
    generation = facts.value("trainer_phase_seconds", phase="generation")
    shares, step = split(facts), facts.value("trainer_step_seconds")
    if generation is not None and "wait" in shares:
        return "Generation takes ", Quantity(shares["wait"], "ratio"), " of each step"
    if step is not None:
        return "A step takes ", Quantity(step, "seconds"), "; trainer wait unknown"
    if _trainerless(facts):
        return "No trainer is monitored yet", None, ""
    silence = facts.silence("trainer_step_seconds")
    return (silence[0].upper() + silence[1:] if silence else "Not enough data yet"), None, ""


def split(facts: StatusFacts) -> dict[str, float]:
    """Shares of the step by phase; empty until at least two phases are known."""
    waiting = facts.value("trainer_phase_seconds", phase="wait|generation")
    seconds = {"wait": waiting} | {
        phase: facts.value("trainer_phase_seconds", phase=phase) for phase in ("compute", "overhead")
    }
    measured = {phase: value for phase, value in seconds.items() if value is not None}
    total = sum(measured.values())
    return {phase: value / total for phase, value in measured.items()} if len(measured) > 1 and total > 0 else {}


def _split(facts: StatusFacts) -> tuple[Part, ...]:
    generates = facts.value("trainer_phase_seconds", phase="generation") is not None
    words = {**PHASES, "wait": "Generate"} if generates else PHASES
    return tuple(Part(phase, words[phase], round(share, 3)) for phase, share in split(facts).items())


def _text(facts: StatusFacts) -> str:
    """Below the headline: the numbers; without a verdict why there is none, and what is measured."""
    summary = _verdict(facts).summary
    if not _verdict(facts).named:
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


def _cost(facts: StatusFacts) -> dict[str, Any]:
    """What idle GPUs cost; where nothing is priced, that it is not known."""
    dollars, bill = _verdict(facts).usd_per_hour, facts.find("cost_usd_per_hour")
    if dollars is None:
        unpriced = _verdict(facts).named and bill is not None and bill.value is None
        return {"share": "Cost unknown: no GPU price is set" if unpriced else ""}
    share = f"idle, {text(dollars / bill.value, 'ratio')} of the bill" if bill is not None and bill.value else "idle"
    totals = [one.value for one in facts.signals if one.signal == "idle_usd_total" and one.value is not None]
    so_far = f"{money(sum(totals))} so far" if totals else ""
    least = "at least " if _verdict(facts).usd_lacks else ""
    return {"usd": Quantity(dollars, "usd/h", prefix=least), "share": joined(share, so_far)}


def _gap(found: Verdict) -> tuple[dict[str, Any], ...]:
    """What the trainer's missing samples are due to, largest first."""
    if not found.named:
        return ()
    ranked = sorted((one for one in found.limiters if one.share >= LEAST_PART), key=lambda one: -one.share)
    return tuple(
        {"label": verdict.reason(one), "state": verdict.colour(one.outcome),
         "share": round(one.share, 3), "text": tight(one.text)}
        for one in ranked
    )  # fmt: skip
