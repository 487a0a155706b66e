"""How many policy versions the engines serve behind the trainer: what a rollout that begins now starts with."""

from statistics import fmean

from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = (
    "no engine tells the version of its weights "
    "(vLLM's /weight_info with VLLM_SERVER_DEV_MODE=1, SGLang's /model_info, once a version is set)"
)
# The trainer's row of a step is written after its weights went out: an engine may be this far ahead of the log.
_AHEAD = 1.0


def _compute(view: View) -> Answer:
    served = [gauge.last for gauge in view.fresh("generator_policy_version")]
    if not served:
        return Unknown(_HINT)
    rows = view.steps.rows(("policy_version", ()), count=1, until=view.now)
    if not rows:
        return Unknown("the trainer reports no policy version to compare the engines' with")
    newest = rows[-1].values[("policy_version", ())]
    if max(served) > newest + _AHEAD:
        return Unknown("the engines' versions are ahead of the trainer's: they do not count the same")
    newest = max(newest, *served)
    behind = [newest - version for version in served]
    return [Value(fmean(behind), (("stat", "mean"),)), Value(max(behind), (("stat", "max"),))]


SIGNAL = Signal(
    name="generator_staleness_versions",
    title="Engine staleness",
    unit="versions",
    actor="generator",
    help="Newest policy version - version that an engine serves: mean and worst engine. Unknown if the two count "
    "differently.",
    inputs=("generator_policy_version",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
