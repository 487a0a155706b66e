"""miles' own metrics page (31f1ca961: miles/utils/tracking_utils/prometheus_utils.py): the last value of every key.

A gauge per key, named `miles_metric_` and the key with `/` and `-` as `_`; its HELP line is the key itself. The steps
are gauges, too. Several processes set them as they log, so values are grouped by the process that logs them together.
If one value of a group has changed, the whole group belongs to the step on the page. If rollouts run ahead of training,
the page may have the trainer's step with the next rollout's values, which are then one step early.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.exposition import parser
from collectors.model import Limits, Reading, Sample, ScrapeError, State
from collectors.trainers.miles import keys as miles_keys
from collectors.trainers.slime.keys import GENERATED, NONFINITE, NORM, ROLLOUT_STEP, counted
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Piece

PREFIX = "miles_metric_"
_HELP = re.compile(r"^# HELP (miles_metric_\S+) (.+)$", re.MULTILINE)
# Keys that the trainer logs when it has finished or prepares a rollout; the others are the rollout manager's.
_TRAINER = re.compile(
    r"perf/(?!rollout_time|fully_async/|request/|decode/|prefill/)\w+_time|perf/.*(?:tflops|mfu|tok_per_s)"
)


def parse(framework: Framework, body: bytes, state: State, limits: Limits) -> Reading:
    """One page: what changed since the previous page, under the rollout's step.

    Args:
        state: ``options["group_size"]``, rollouts per group, turns groups into samples.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page without miles' gauges, or a truncated one.
    """
    page = parser.parse(body, state, limits)
    parser.check_whole(body)
    names = dict(_HELP.findall(body.decode(errors="replace")))
    raw = {names.get(series.name, ""): value for series, value in page.samples if series.name.startswith(PREFIX)}
    raw.pop("", None)
    if not raw:
        raise ScrapeError("garbage", f"not a page of miles: it has no {PREFIX}* series")
    page_memory = state.setdefault("miles", {})
    context = Context({"framework": framework.name, **_options(state)}, page_memory.setdefault("own", {}), "page")
    unmapped: dict[str, int] = {}
    samples = tuple(_samples(framework, _changed(raw, page_memory), raw.get(ROLLOUT_STEP), context, unmapped))
    if "mode" not in context.facts:
        context.facts["usual_mode"] = framework.mode
    return Reading(
        samples=samples, facts=context.facts, unmapped=unmapped, dropped=page.dropped, why_dropped=page.why,
        samples_scraped=len(raw),
    )  # fmt: skip


def matches(body: bytes) -> bool:
    """Returns whether a line begins with one of miles' gauges."""
    return re.search(rb"^miles_metric_\w+[{ ]", body, re.MULTILINE) is not None


def _options(state: State) -> dict[str, str | float]:
    text = str(state.get("options", {}).get("group_size", ""))
    return {"group_size": float(text)} if text.isascii() and text.isdecimal() and int(text) > 0 else {}


def _group(key: str) -> str:
    if key.startswith("train/"):
        return "train"
    return "trainer" if _TRAINER.fullmatch(key) else "rollout"


def _changed(raw: Mapping[str, float], page_memory: dict[str, Any]) -> dict[str, float]:
    """Values of the groups in which any value differs from the previous page."""
    before: dict[str, float] = page_memory.get("values", {})
    # Compared as text, because NaN is equal to nothing.
    changed_groups = {
        _group(key) for key, value in raw.items() if key != ROLLOUT_STEP and str(before.get(key)) != str(value)
    }
    page_memory["values"] = dict(raw)
    return {key: value for key, value in raw.items() if _group(key) in changed_groups}


def _samples(
    framework: Framework, values: dict[str, float], step: float | None, context: Context, unmapped: dict[str, int]
) -> Iterator[Sample]:
    if step is None or not math.isfinite(step):
        return
    finite_values = {key: value for key, value in values.items() if math.isfinite(value)}
    if NORM in values:
        finite_values[NONFINITE] = float(NORM not in finite_values)
    if any(key in finite_values for key in GENERATED):
        finite_values |= counted(finite_values, context.memory)
    needed = context.memory.setdefault("needs", {})
    if needed.get("step") != step:
        needed |= {"step": step, "values": {}}
    needed["values"].update({key: value for key, value in finite_values.items() if key in miles_keys.NEEDS})
    for key, value in finite_values.items():
        keys = framework.keys.get(key)
        if (
            keys is None
            and (framework.ignored is None or not framework.ignored.fullmatch(key))
            and key not in miles_keys.NEEDS
        ):
            unmapped[key] = 1
        for key_of_metric in () if keys is None else (keys,) if isinstance(keys, Key) else keys:
            yield Sample(
                key_of_metric.metric,
                value * key_of_metric.scale + key_of_metric.offset,
                key_of_metric.labels,
                None,
                int(step),
                TRAINER,
            )
    if finite_values and framework.derive is not None:
        for metric, labels, value in framework.derive(Piece(TRAINER, int(step), 0.0, needed["values"]), context):
            yield Sample(metric, value, labels, None, int(step), TRAINER)
