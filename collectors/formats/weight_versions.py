"""Reads from engines' answers which policy version made which token.

vLLM's `/inference/v1/generate` (`--enable-scale-out`) has `weight_versions` spans next to each choice's tokens (0.29.0:
outputs.py, `WeightVersionSpan`), SGLang the same in a request's `meta_info` or `metadata`: the version's name and its
tokens [start, end). The trainer chooses the name: a number, or a number behind a word ("v12", "step-12").
"""

import re
from collections.abc import Sequence

from collectors.formats.rows import objects, whole

KEY = "weight_versions"
# Spans of one answer: weights change a few times during it.
SPANS_MAX = 10_000
_NAMED = re.compile(r"(?!-\d)[^\d]{0,40}(\d{1,15})")

TokenVersions = tuple[tuple[int, int], ...]
"""(policy version, tokens it produced), oldest token first."""


def number_of(name: object) -> int | None:
    """The policy version in a name; None if it has no number ("default") or more than one."""
    if not isinstance(name, str):
        return whole(name)
    match = _NAMED.fullmatch(name.strip()[:64])
    return int(match[1]) if match is not None else None


def token_versions(spans: object) -> TokenVersions:
    """Spans ``[{version, start, end}, ...]`` as versions with their tokens; neighbours of one version are joined.


    Empty if there are none or they are incomplete (a version without a number, tokens with no span or several),
    because a part would be taken for the whole.
    """
    joined: list[list[int]] = []
    position = 0
    for span in objects(spans)[:SPANS_MAX]:
        version, start, end = number_of(span.get("version")), whole(span.get("start")), whole(span.get("end"))
        if version is None or start is None or end is None or end < start or start != position:
            return ()
        position = end
        if end == start:
            continue
        if joined and joined[-1][0] == version:
            joined[-1][1] += end - start
        else:
            joined.append([version, end - start])
    complete = isinstance(spans, list) and len(objects(spans)) == len(spans) <= SPANS_MAX
    return tuple((version, tokens) for version, tokens in joined) if complete else ()


def together(parts: Sequence[TokenVersions]) -> TokenVersions:
    """Joins the versions of several answers (turns) of one rollout, in order; neighbours of one version are joined."""
    joined: list[tuple[int, int]] = []
    for version, tokens in (version_tokens for part in parts for version_tokens in part):
        if joined and joined[-1][0] == version:
            tokens += joined.pop()[1]
        joined.append((version, tokens))
    return tuple(joined)
