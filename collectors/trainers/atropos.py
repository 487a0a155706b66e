"""Atropos: the queue of its API server, and the wandb logs of its environments and its example trainer.

Only `GET /status` and `GET /info` of the server are requested. `GET /batch` would take a batch from the trainer,
`GET /reset_data` would end the run, and `GET /status-env` writes the environment's group size.

Not available: staleness and ages (no version is stored), groups of equal rewards, reward (every environment has its own
name), rollouts in flight. The server's `current_step` counts batches it has cut, several at once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

from collectors.formats import wandb
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged
from collectors.model import Limits, Reading, Sample, ScrapeError, State
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of
from collectors.transport.rest import get_json, total_timeout

# An environment logs with the server's step, which is not the trainer's.
ENVIRONMENT = "orchestrator"
UPDATE, SYNC, WAIT = "train/step_time", "train/sync_time", "train/data_fetch_time"
NORM = "train/grad_norm"
# Not a key of Atropos: `pieces` adds it, because a gradient norm that is not finite is itself a finding.
NONFINITE = "train/grad_norm is not finite"
# Behind the environment's name: "gsm8k_train/completion_lengths".
_NAMED = re.compile(r"(?:.+_)?(train(?:_perf)?/(?:completion_lengths|items_|task_duration|percent_correct).*)")

KEYS: dict[str, Key | tuple[Key, ...]] = {
    # Keys of the example trainer.
    WAIT: Key("trainer_wait_seconds"),
    UPDATE: Key("trainer_compute_seconds"),
    SYNC: Key("trainer_weight_sync_seconds"),
    "train/loss": Key("loss_mean"),
    "train/lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    # Policy over the log-probabilities that came with the samples.
    "grpo/mean_ratio": Key("importance_ratio_mean"),
    "grpo/clipped_fraction": Key("clip_ratio"),
    "alignment/diff_abs_mean": Key("mismatch_logprob_difference_mean"),
    "alignment/diff_max": Key("mismatch_logprob_difference_max"),
    # Keys of an environment. `completion_lengths_p95` is a share of completions, not a length.
    "train/completion_lengths": Key("response_tokens_mean"),
    "train/completion_lengths_max": Key("response_tokens_max"),
    "train/completion_lengths_min": Key("response_tokens_min"),
    "train/percent_correct": Key("solve_ratio"),
    # Logged if there are at least two.
    "train/items_rejected": Key("filtered_groups"),
}
IGNORED = re.compile(r"(?:.+_)?train(?:_perf)?/.*|(?:.+_)?eval/.*|server/.*|grpo/.*|alignment/.*|logprobs/.*|_.*")


def facts(config: Mapping[str, Any]) -> Facts:
    """From the configuration of an environment (envs/base.py) or of the example trainer (config.py)."""
    settings = Settings(config)
    batch = settings.number("batch_size")
    if "training_steps" in settings:
        # The trainer counts micro-batches and registers their product (example_trainer/api.py).
        return facts_of(
            batch_samples=product(batch, settings.number("gradient_accumulation_steps")),
            max_steps=settings.number("training_steps"),
            model=settings.text("model_name").rstrip("/").rpartition("/")[2],
        )
    return facts_of(
        group_size=settings.number("group_size"),
        batch_samples=batch,
        # In batches; the trainer takes one a step.
        max_staleness_versions=settings.number("max_batches_offpolicy"),
        max_steps=settings.number("total_steps"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """A row of the trainer, or one of an environment on its own axis without the environment's name."""
    if row.step is None or row.ts is None:
        return
    if "train/loss" in row.values:
        remaining = {**values, NONFINITE: float(NORM not in values)} if NORM in row.values else dict(values)
        yield Piece(TRAINER, row.step, row.ts, remaining)
        return
    renamed = {
        match.group(1) if (match := _NAMED.fullmatch(key)) is not None else key: value for key, value in values.items()
    }
    if any(key.startswith(("train/", "train_perf/")) for key in renamed):
        yield Piece(ENVIRONMENT, row.step, row.ts, renamed)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The step: `step_time` is the update alone; the three phases follow one another (example_trainer/trainers.py)."""
    values = piece.values
    if UPDATE in values and WAIT in values:
        yield "trainer_step_seconds", (), values[WAIT] + values[UPDATE] + values.get(SYNC, 0.0)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """The queue in groups, and the batch it is cut into.

    Before a trainer has registered there is no queue: then `/status` says 0 and `/info` -1.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for answers of another shape.
    """
    async with total_timeout(limits):
        info = (await get_json(client, "/info", {}, limits)).json
        status = (await get_json(client, "/status", {}, limits)).json
    if not _is_atropos(info, status):
        raise ScrapeError("garbage", "the answers are not those of an Atropos server")
    batch, groups = number(info["batch_size"]), number(status["queue_size"])
    valid = batch is not None and batch > 0 and groups is not None
    samples = (Sample("queue_groups", groups),) if valid and groups is not None else ()
    return Reading(samples=samples, facts={"framework": "atropos", **facts_of(batch_samples=batch)}, samples_scraped=1)


def _is_atropos(info: Any, status: Any) -> bool:
    return (
        isinstance(info, dict)
        and isinstance(status, dict)
        and {"batch_size", "max_token_len"} <= info.keys()
        and {"current_step", "queue_size"} <= status.keys()
    )


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Returns whether an Atropos server answers."""
    try:
        info = (await get_json(client, "/info", {}, limits)).json
        return _is_atropos(info, (await get_json(client, "/status", {}, limits)).json)
    except ScrapeError:
        return False


FRAMEWORK = Framework(
    name="atropos",
    reads="an Atropos API server: the queue; runs of its environments and its example trainer (wandb)",
    versions="296a0bc5 (2026-07) by source",
    sinks=(wandb.SINK,),
    keys=KEYS,
    needs=frozenset((UPDATE, WAIT, SYNC)),
    ignored=IGNORED,
    marks=(
        (WAIT, "grpo/mean_ratio"),
        r"(?:.+_)?train_perf/task_duration_mean",
        r"(?:.+_)?train/completion_lengths_p95",
    ),
    config_marks=("max_batches_offpolicy",),
    split=pieces,
    derive=derive,
    facts=facts,
    derives=("trainer_step_seconds", "queue_groups"),
    hints={"queue_groups": "add the URL of the API server (`run-api`, port 8000), and `group_size` as a fact"},
    seconds=(UPDATE,),
    mode="async",
    only_mode=True,
)
COLLECTOR = collector_of(FRAMEWORK, poll=poll, matches_server=matches_server)
