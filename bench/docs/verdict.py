"""The page of the verdict's rules: tables from `server.verdict`, in a frame of text."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

from bench.docs.markdown import code, page, section, table
from server.verdict import thresholds
from server.verdict.advice import LEVER_OF, LEVERS
from server.verdict.model import CAUSES, RULES_VERSION, Outcome
from server.verdict.rules import RULES

# Thresholds that a reader needs to check a verdict; the others bound noise, windows and texts.
SHOWN = (
    "WAITS", "LEAST_FACTOR", "SURPLUS", "HOLDS", "MUCH_OVERHEAD", "ZERO_ADVANTAGE", "FULL", "FREE_CACHE",
    "BUSY_SCORER",
)  # fmt: skip

INTRODUCTION = f"""
[The verdict](verdict.md) explains the idea. This page lists the rules of the program, version {RULES_VERSION}
(`rules_version`). [How often it is right](../project/verdict-evaluation.md).
"""

STEPS = """
At every tick (5 s), from the newest signals:

1. **Numbers**: which of the last steps describe the present, what the trainer takes, what arrives, and where the
   rollouts in flight are.
2. **Limiters**: for each a *factor*, how much it slows down its part, and a *gain*, how much more the run would train
   without it. 3. **Rules**: the first rule that applies gives outcome and cause. Texts and advice follow from the
same numbers.

A run trains min(what the trainer takes, what production delivers), in samples/s:

- capacity = samples / (step - wait); gap = 1 / (1 - wait).
- arrivals = trained + dropped as stale + growth of the queue.
- potential = arrivals / (1 - held share of the time). A hold does not count while the trainer waits and the queue is
  short of a batch.
- predicted wait = 1 - arrivals / capacity. If it differs by more than 15 points from the reported wait,
  `disagreements` has both.

A part with the share s has the factor 1 / (1 - s). Time outside the engines costs only as far as these have room. A
gain is at most the gap. What no limiter explains is `too_few_engines`, `max_num_seqs`, `concurrency_cap` or `not_told`.
"""

TIME = """
Engines, sandbox providers, rollout records, counters and logs each report a part. Every rollout counts once, as
booting, generating, in tools or scoring. By Little's law, the share of rollouts in a phase is its share of a
rollout's time.

- A request in an engine is a generating rollout. At most as many rollouts boot as sandboxes are pending.
- With `has_sandbox = 0` nothing boots, and the orchestrator runs the tools.
- The log of ended rollouts is used only where no other source reports the phase.

Means cover the judged steps, one to five minutes. After a clear change within the last ten steps, only the steps
after it count. `contradictions` lists two sources that cannot both be right.
"""

RULES_FRAME = """
The trainer *waits* if it waits for 15% of its step or more, and not because of samples dropped as stale. A step is
*late* after 3 times the usual step, 1.5 times the longest of the last ten, and 20 s.
"""

CAUSES_FRAME = """
After the semicolon: the lever that usually removes the cause, with its unit and cost (a setting, a restart of a part
of the run, or money).
"""

CONFIDENCE = """
`completeness` is the weight of the available evidence: the trainer's wait, engines and phases of rollouts 25% each, the
queue 15%, groups without a gradient 10%. `confidence` is the product of:

- 0.95, and the rule's own factor: 1 if it measures the limiter, 0.9 if an effect of it, 0.6 if a missing source could
  reverse the verdict;
- 0.4 + 0.6 x completeness;
- 0.6 or 0.85 if the best limiter of another outcome gains nearly as much;
- 0.8 if sources contradict each other, or the predicted wait differs;
- 0.5 or 0.6 if chance could reverse the verdict: one judged step, a wait within two standard errors of 15%, or half of
  the groups possibly without a gradient (95% Wilson interval).

Liveness rules use the first factors only. A verdict is confident from 0.6 on.
"""

CHANGES = """
Another outcome replaces the current one after 30 s; 60 s if it is not confident; 15 s if whole steps show it, or only
the cause changes; 2 min for `missing`; at once for `stalled`. Until then the current verdict has a confidence of at
most 0.45. It is kept until the wait is 4 points beyond its threshold.

Clear contradictions end it at once: a balanced or trainer-bound run that waits for a quarter of its step, a waiting run
that waits for less than 5%, a limiting actor that is idle, a stalled run in which a step ends.

`buffer` is the state of the queue: `ok`, `starved` (short of a batch), `stall` (batches wait, none is taken), `stop`
(nothing arrives or is taken), `rewind` (the version went back), `gated` (held) or `unknown`.
"""

ADVICE = """
Every lever is tried in one model, by Little's law: rollouts in flight go through engines that slow down when fuller,
sandboxes, tools and scoring into a queue, from which the trainer takes batches.

- **Gain** is a range `[low, mid, high]`, a factor of trainable samples/s. What the run has not shown is taken at its
  least and its most: how much engines slow down, how far trainer and production wait for each other, how training
  scales over GPUs.
- Of a lever's values, the smallest that brings most of its gain is advised, from 1.05 on.
- **Order**: log gain over cost (setting 1, restart 1.2, money 3); the lever of the cause counts a little more.
- For a lever without inputs, Rollscope states what to log.
- A repair comes first.
"""


def rules_page() -> str:
    """docs/concepts/verdict-rules.md."""
    rules = [(name, *_rule(rule.__doc__ or "")) for name, rule in RULES]
    return page(
        "The rules of the verdict",
        INTRODUCTION,
        section("How the verdict is computed", STEPS),
        section("Where a rollout's time goes", TIME),
        section("The rules, in order", RULES_FRAME, table(("rule", "outcome", "condition"), rules)),
        section("Causes and their levers", CAUSES_FRAME, *_causes()),
        section("Thresholds", "\n".join(_thresholds())),
        section("How confidence is computed", CONFIDENCE),
        section("How the verdict changes", CHANGES),
        section("How the advice is computed", ADVICE),
    )


def _rule(text: str) -> tuple[str, str]:
    """Returns outcome and condition from the first paragraph "Returns OUTCOME: condition." of a docstring."""
    outcome, _, condition = " ".join(text.partition("\n\n")[0].split()).partition(": ")
    names = re.findall(r"\w+_bound|any tuning outcome|stalled|balanced|unknown", outcome)
    assert outcome.startswith("Returns ") and names and condition, f"not 'Returns OUTCOME: condition': {text}"
    outcomes = ", ".join(code(name) if name in get_args(Outcome) else name for name in names)
    return outcomes, condition[0].upper() + condition[1:]


def _causes() -> Iterator[str]:
    """Yields one list per outcome; the text of a lever stands at its first cause."""
    seen = set[str]()
    for outcome, causes in CAUSES.items():
        lines = [f"- {code(cause)}: {meaning}{_lever(LEVER_OF.get(cause), seen)}" for cause, meaning in causes.items()]
        if lines:
            yield "\n".join([f"{code(outcome)}:", "", *lines])


def _lever(name: str | None, seen: set[str]) -> str:
    if name is None:
        return ""
    if name in seen:
        return f"; {code(name)}"
    seen.add(name)
    lever = LEVERS[name]
    return f"; {code(name)}: {lever.text} ({', '.join(part for part in (lever.unit, lever.cost) if part)})"


def _thresholds() -> Iterator[str]:
    """Yields one item with name, value and docstring of each threshold that is shown."""
    body = ast.parse(Path(thresholds.__file__).read_text("utf-8")).body
    texts = {
        part.targets[0].id: after.value.value
        for part, after in pairwise(body)
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    for name in SHOWN:
        yield " ".join(f"- {code(name)} {getattr(thresholds, name):g}: {texts[name]}".split())
