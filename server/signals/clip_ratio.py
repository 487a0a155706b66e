"""The share of tokens that the update leaves out as too far from the policy that made them."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no clipped share (verl `actor/pg_clipfrac`, TRL `clip_ratio/region_mean`)"

SIGNAL = Signal(
    name="clip_ratio",
    title="Clipped tokens",
    unit="ratio",
    actor="trainer",
    help="Share of tokens whose importance ratio was clipped or masked, mean over the last 10 steps.",
    inputs=("clip_ratio",),
    cadence="step",
    compute=single("clip_ratio", _HINT),
    hint=_HINT,
)
