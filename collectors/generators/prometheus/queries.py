"""Queries for what the engines' collectors read, and a user's selector checked before it becomes part of one. Pure.

Names come from the collectors' own tables; sums keep every label that those look at and drop the rest (pod, node,
process), so that a store sends what is read and no more. Prometheus 2 stores `_` for `:`, Ray puts `ray_` before.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from collectors.engine_pages.pages import REPLICA_LABELS, Take
from collectors.generators.sglang import names as sglang_names
from collectors.generators.vllm import names as vllm_names

# Whose scrape it was. Several scrapes of one engine (two jobs, a highly available pair) are one engine: never added up.
TARGET = ("cluster", "instance", "job")
PAIR = ("prometheus", "prometheus_replica", "replica")

_KV = ("kv_cache_size_tokens", "num_gpu_blocks", "num_gpu_blocks_override", "block_size", "kv_cache_max_concurrency")
_OWN = ("model_name", "engine", "server", "sleep_state", "dp_rank", "priority", "num_pages", "page_size")
_CALLED = ("endpoint", "status_code", "handler", "method", "status")

_STRING = r'"(?:[^"\\\n]|\\[abfnrtv\\"\'])*"'
_MATCHER = re.compile(rf"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*({_STRING})\s*", re.ASCII)
SELECTOR_CHARACTERS = 500


def matchers(selector: str) -> str:
    """The inside of a user's ``{name="value", ...}``, ready to stand beside our own matchers; "" for none.

    Raises:
        ValueError: what is wrong with it. Nothing but matchers passes: no function, no comment, no second selector.
    """
    text = selector.strip()
    if len(text) > SELECTOR_CHARACTERS:
        raise ValueError(f"longer than {SELECTOR_CHARACTERS} characters")
    if not text:
        return ""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError('must be matchers in braces, as {job="vllm"}')
    return ",".join(_each(text[1:-1]))


def _each(inside: str) -> Iterator[str]:
    at = 0
    while inside[at:].strip():
        found = _MATCHER.match(inside, at)
        if found is None or (found.end() < len(inside) and inside[found.end()] != ","):
            raise ValueError('must be matchers in braces, as {job="vllm"}: label, one of = != =~ !~, text in ""')
        if found.group(1) == "__name__":
            raise ValueError("__name__ is the collector's own")
        yield "".join(found.groups())
        at = found.end() + 1


def _labels(tables: Iterable[Mapping[str, Take]]) -> Iterator[str]:
    """Labels that rows of the tables split by or ask for."""
    for table in tables:
        for row in table.values():
            take: Take | None = row
            while take is not None:
                yield from (name for name in (take.split.partition(">")[0], *dict(take.only)) if name)
                take = take.also


KEPT: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *_OWN,
            *_KV,
            *_CALLED,
            *sglang_names.COPY_LABELS,
            *(name for name in REPLICA_LABELS if name != "replica"),
            *_labels((vllm_names.VALUES, sglang_names.VALUES, vllm_names.HISTOGRAMS, sglang_names.HISTOGRAMS)),
        )
    )
)
"""Labels that the engines' collectors look at."""

_VALUES = {
    "vllm": ("cache_config_info", "engine_sleep_state", *vllm_names.VALUES),
    "sglang": ("cache_config_info", "http_responses", "http_requests_active", *sglang_names.VALUES),
}
# On every page of an engine; behind Ray a gauge is in every second page only, a counter from its first increase on.
_ALWAYS = {
    "vllm": ("num_requests_running", "generation_tokens_total"),
    "sglang": ("num_running_reqs", "realtime_tokens_total", "generation_tokens_total"),
}
_HISTOGRAMS = {"vllm": tuple(vllm_names.HISTOGRAMS), "sglang": tuple(sglang_names.HISTOGRAMS)}


def _select(names: str, inside: str) -> str:
    return f'{{__name__=~"{names}"{"," if inside else ""}{inside}}}'


def seen(inside: str) -> str:
    """When was each engine last scraped? One row per scrape of it: epoch seconds by the store's clock."""
    # timestamp() takes the name away: of several names at once it would leave series that cannot be told apart.
    forms = ("{engine}:{name}", "{engine}_{name}", "ray_{engine}_{name}")
    every = [(form, engine, name) for form in forms for engine, names in _ALWAYS.items() for name in names]
    return " or ".join(_last(form.format(engine=engine, name=name), inside) for form, engine, name in every)


def _last(name: str, inside: str) -> str:
    # Behind Ray `replica` tells engines of one page apart; elsewhere it is a replica of the Prometheus that scraped.
    by = (*TARGET, *(PAIR[:-1] if name.startswith("ray_") else PAIR))
    own = f'__name__="{name}"' + (f",{inside}" if inside else "")
    return f"max by ({', '.join(by)}) (timestamp({{{own}}}))"


def up(inside: str) -> str:
    """Did the last scrape of each target succeed? Behind one of a pair is enough."""
    return f"max by ({', '.join(TARGET)}) (up{{{inside}}})"


def values(inside: str) -> str:
    """Gauges and counters."""
    each = "|".join(f"{engine}[:_](?:{'|'.join(names)})" for engine, names in _VALUES.items())
    return _sum((), _select(f"(?:ray_)?(?:{each})(?:_total)*", inside))


def histograms(inside: str) -> str:
    """Buckets and sums; a histogram's count is its last bucket."""
    each = "|".join(f"{engine}[:_](?:{'|'.join(names)})" for engine, names in _HISTOGRAMS.items())
    return _sum(("le",), _select(f"(?:ray_)?(?:{each})_(?:bucket|sum)", inside))


def servers(inside: str) -> str:
    """What the HTTP server around an engine counts: pauses, resumes and weight updates; and when it began."""
    handlers = "|".join(vllm_names.CALLS)
    own = f'handler=~"{handlers}",method="POST"' + (f",{inside}" if inside else "")
    counted = _sum((), _select("http_requests_total|http_request_duration_seconds_sum", own))
    return f"{counted} or {_sum((), _select('process_start_time_seconds', inside))}"


def _sum(more: tuple[str, ...], selected: str) -> str:
    return f"sum by ({', '.join(('__name__', *TARGET, *PAIR, *KEPT, *more))}) ({selected})"
