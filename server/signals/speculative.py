"""Speculative decoding: how many of the drafted tokens the model accepts."""

from collections import defaultdict
from statistics import fmean

from server.signals.aggregates import grown
from server.signals.model import Answer, Unknown, Value, View, signal

HINT = "no engine reports drafted tokens: speculative decoding is off"
_NONE = "no token was drafted within 5 minutes"
_DRAFTED, _ACCEPTED, _DRAFTS, _BY_POSITION = (
    "speculative_draft_tokens_total", "speculative_accepted_tokens_total", "speculative_drafts_total",
    "speculative_accepted_tokens_by_position_total",
)  # fmt: skip
# Positions that are shown: the acceptance falls with each.
_MOST = 8


def _mean(view: View, metric: str) -> Answer:
    """Plain mean over engines of a figure over their own window. SGLang reports 0 while it does not speculate."""
    means = [mean for gauge in view.fresh(metric) if (mean := gauge.mean(view.now)) > 0]
    return [Value(fmean(means))] if means else Unknown(HINT)


@signal(
    title="Draft tokens accepted",
    unit="ratio",
    actor="generator",
    inputs=(_DRAFTED, _ACCEPTED, "speculative_accept_ratio"),
    cadence="tick",
    hint=HINT,
)
def speculative_accepted_ratio(view: View) -> Answer:
    """Share of the drafted tokens that were accepted over 5 minutes, all engines together; the mean of the engines'
    own shares where they do not count tokens (SGLang).
    """
    drafted, accepted = grown(view, _DRAFTED), grown(view, _ACCEPTED)
    if drafted is None or accepted is None:
        return _mean(view, "speculative_accept_ratio")
    return [Value(accepted / drafted)] if drafted > 0 else Unknown(_NONE)


@signal(
    title="Accepted length",
    unit="tokens",
    actor="generator",
    inputs=(_DRAFTS, _ACCEPTED, "speculative_step_tokens"),
    cadence="tick",
    hint=HINT,
)
def speculative_accepted_length_tokens(view: View) -> Answer:
    """Tokens of a sequence per step over 5 minutes: accepted drafted tokens and the model's own one. 1 is no gain."""
    drafts, accepted = grown(view, _DRAFTS), grown(view, _ACCEPTED)
    if drafts is None or accepted is None:
        return _mean(view, "speculative_step_tokens")
    return [Value(1 + accepted / drafts)] if drafts > 0 else Unknown(_NONE)


@signal(
    title="Accepted by position",
    unit="ratio",
    actor="generator",
    inputs=(_DRAFTS, _BY_POSITION),
    cadence="tick",
    hint="no engine reports accepted tokens by position (vLLM does with speculative decoding)",
)
def speculative_position_ratio(view: View) -> Answer:
    """Share of the drafts of which the token at a position was accepted, over 5 minutes; position 0 is the first.

    Where the last positions are hardly accepted, shorter drafts cost less and give as much.
    """
    drafts, accepted = grown(view, _DRAFTS), defaultdict[int, float](float)
    for gauge in view.fresh(_BY_POSITION):
        position = dict(gauge.labels).get("position", "")
        if position.isdecimal() and int(position) < _MOST:
            accepted[int(position)] += gauge.increase(view.now)[0]
    if drafts is None or not accepted:
        return Unknown(speculative_position_ratio.hint)
    if drafts <= 0:
        return Unknown(_NONE)
    return [Value(count / drafts, (("position", str(position)),)) for position, count in sorted(accepted.items())]
