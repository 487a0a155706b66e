"""Builds PromQL queries for the series that the engines' collectors read, and validates the user's selector. Pure.

Names come from the collectors' tables. Sums keep the labels that the collectors use and drop the others (pod, node,
process), to limit the size of the answers. Prometheus 2 stores `_` for `:`; Ray adds the prefix `ray_`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from collectors.engine_pages.pages import REPLICA_LABELS, MetricRule
from collectors.generators.sglang import names as sglang_names
from collectors.generators.vllm import names as vllm_names

# Labels of a scrape. Several scrapes of one engine (two jobs, a highly available pair) are never added up.
TARGET = ("cluster", "instance", "job")
# Labels of the Prometheus replica that scraped.
PAIR = ("prometheus", "prometheus_replica", "replica")

# Labels that the collectors use in code, in addition to those of their tables.
_KV_LABELS = (
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "num_gpu_blocks_override",
    "block_size",
    "kv_cache_max_concurrency",
)
_ENGINE_LABELS = ("model_name", "engine", "server", "sleep_state", "dp_rank", "priority", "num_pages", "page_size")
_HTTP_LABELS = ("endpoint", "status_code", "handler", "method", "status")

_STRING = r'"(?:[^"\\\n]|\\[abfnrtv\\"\'])*"'
_MATCHER = re.compile(rf"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*({_STRING})\s*", re.ASCII)
# Longest accepted selector.
SELECTOR_CHARACTERS = 500


def matchers(selector: str) -> str:
    """The matchers of a user's ``{name="value", ...}``, to be joined with our own; "" for none.

    Raises:
        ValueError: for anything but matchers: no function, comment or second selector is accepted.
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
        match = _MATCHER.match(inside, at)
        if match is None or (match.end() < len(inside) and inside[match.end()] != ","):
            raise ValueError('must be matchers in braces, as {job="vllm"}: label, one of = != =~ !~, text in ""')
        if match.group(1) == "__name__":
            raise ValueError("__name__ is the collector's own")
        yield "".join(match.groups())
        at = match.end() + 1


def _labels(tables: Iterable[Mapping[str, MetricRule]]) -> Iterator[str]:
    """Labels that rows of the tables split by or require."""
    for table in tables:
        for row in table.values():
            rule: MetricRule | None = row
            while rule is not None:
                yield from (name for name in (rule.split.partition(">")[0], *dict(rule.only)) if name)
                rule = rule.also


SUM_LABELS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *_ENGINE_LABELS,
            *_KV_LABELS,
            *_HTTP_LABELS,
            *sglang_names.COPY_LABELS,
            *(name for name in REPLICA_LABELS if name != "replica"),
            *_labels((vllm_names.VALUES, sglang_names.VALUES, vllm_names.HISTOGRAMS, sglang_names.HISTOGRAMS)),
        )
    )
)
"""Labels that the engines' collectors use."""

_VALUES = {
    "vllm": ("cache_config_info", "engine_sleep_state", *vllm_names.VALUES),
    "sglang": ("cache_config_info", "http_responses", "http_requests_active", *sglang_names.VALUES),
}
# Series on every page of an engine. Behind Ray a gauge is on every second page, a counter after its first increase.
_ALWAYS = {
    "vllm": ("num_requests_running", "generation_tokens_total"),
    "sglang": ("num_running_reqs", "realtime_tokens_total", "generation_tokens_total"),
}
_HISTOGRAMS = {"vllm": tuple(vllm_names.HISTOGRAMS), "sglang": tuple(sglang_names.HISTOGRAMS)}


def _select(names: str, inside: str) -> str:
    return f'{{__name__=~"{names}"{"," if inside else ""}{inside}}}'


def seen(inside: str) -> str:
    """Time of the last scrape of each engine: one row per scrape, in epoch seconds of the store's clock."""
    # timestamp() drops the name, so a query for several names at once could return several series with equal labels.
    forms = ("{engine}:{name}", "{engine}_{name}", "ray_{engine}_{name}")
    every = [(form, engine, name) for form in forms for engine, names in _ALWAYS.items() for name in names]
    return " or ".join(_last(form.format(engine=engine, name=name), inside) for form, engine, name in every)


def _last(name: str, inside: str) -> str:
    # Behind Ray `replica` identifies an engine of the page; elsewhere it is a replica of the Prometheus that scraped.
    by = (*TARGET, *(PAIR[:-1] if name.startswith("ray_") else PAIR))
    selector = f'__name__="{name}"' + (f",{inside}" if inside else "")
    return f"max by ({', '.join(by)}) (timestamp({{{selector}}}))"


def up(inside: str) -> str:
    """Did the last scrape of each target succeed, for at least one Prometheus of a pair?"""
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
    """Counters of the HTTP server around an engine (pauses, resumes, weight updates), and its start time."""
    handlers = "|".join(vllm_names.CALLS)
    selector = f'handler=~"{handlers}",method="POST"' + (f",{inside}" if inside else "")
    counted = _sum((), _select("http_requests_total|http_request_duration_seconds_sum", selector))
    return f"{counted} or {_sum((), _select('process_start_time_seconds', inside))}"


def _sum(more: tuple[str, ...], selected: str) -> str:
    return f"sum by ({', '.join(('__name__', *TARGET, *PAIR, *SUM_LABELS, *more))}) ({selected})"
