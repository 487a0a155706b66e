"""Whether training pays: scores of evaluations, reward components, and the rise of the reward against its cost."""

from collectors.model import Labels
from server.signals.aggregates import mean, too_few, total, window
from server.signals.cost import spend
from server.signals.drift_detector import FEWEST, Trend, trend
from server.signals.model import STEP_MINIMUM, Answer, Unknown, Value, View, signal
from server.signals.window import Step, StepKey

# Steps of a trend. Trends are quadratic in them.
STEPS = 40
# Reward functions with values of their own; more are in the metric.
MOST_FUNCTIONS = 8
NO_TREND = "no clear trend"
_REWARD, _COMPONENT, _TOKENS = "reward_mean", "reward_component_mean", "trained_tokens"


@signal(
    title="Evaluation",
    unit="",
    actor="trainer",
    inputs=("evaluation_score", "evaluation_samples"),
    cadence="step",
    hint="this trainer logs no evaluation score (verl `val-core/DATA/acc/mean@N`, slime `eval/DATA`, "
    "TRL `eval_reward`, prime-rl `eval/ENV/effective/AGENT/avg@K`)",
)
def evaluation_score(view: View) -> Answer:
    """Newest score of each evaluation, as the trainer logs it. The remark has its step, the change since the previous
    evaluation, and the number of samples if it is logged.
    """
    samples = dict(view.steps.last_of("evaluation_samples", 1, view.now))
    found = [
        Value(rows[0].values["evaluation_score", labels], labels, _remark(labels, rows, samples.get(labels, [])))
        for labels, rows in view.steps.last_of("evaluation_score", 2, view.now)
    ]
    return found or Unknown(evaluation_score.hint)


def _remark(labels: Labels, rows: list[Step], counted: list[Step]) -> str:
    key, newest = ("evaluation_score", labels), rows[0]
    parts = [f"step {newest.number:,}"]
    if len(rows) > 1:
        parts.append(f"{newest.values[key] - rows[1].values[key]:+.3g} since step {rows[1].number:,}")
    if counted and counted[0].number == newest.number:
        parts.append(f"{counted[0].values['evaluation_samples', labels]:,.0f} samples")
    return "; ".join(parts)


@signal(
    title="Reward component",
    unit="reward",
    actor="trainer",
    inputs=(_COMPONENT,),
    cadence="step",
    hint="this trainer logs no reward by function (TRL `rewards/FUNCTION/mean`)",
)
def reward_component(view: View) -> Answer:
    """Mean of each reward function over the last 10 steps, of at most 8 functions. Their weights are not reported."""
    windows = {key: window(view, key) for key in _functions(view)}
    found = [Value(mean(rows, *key), key[1]) for key, rows in windows.items() if len(rows) >= STEP_MINIMUM]
    longest = max(windows.values(), key=len, default=[])
    return found or too_few(longest, reward_component.hint) or []


def _functions(view: View) -> list[StepKey]:
    return [(_COMPONENT, labels) for labels, _ in view.steps.last_of(_COMPONENT, 1, view.now)][:MOST_FUNCTIONS]


def _trend(view: View, *key: StepKey) -> tuple[list[Step], Trend | None]:
    """The last rows with all keys, and the trend of the first over step numbers."""
    rows = view.steps.rows(*key, count=STEPS, until=view.now)
    return rows, trend([(row.number, row.values[key[0]]) for row in rows])


_FEW = f"fewer than {FEWEST} steps report it so far; no action needed"


@signal(
    title="Reward rise",
    unit="reward",
    actor="trainer",
    inputs=(_REWARD, _COMPONENT),
    cadence="step",
    hint="this trainer reports no reward: log its mean per step (TRL `reward`, verl `critic/score/mean`)",
)
def reward_rise(view: View) -> Answer:
    """Rise of the mean reward (of=total) and of each reward function over the last 40 steps: Theil-Sen slope times the
    steps. The remark has their number, and tells if the 95% interval of the slope contains 0.
    """
    found = []
    keys: list[tuple[StepKey, Labels]] = [((_REWARD, ()), (("of", "total"),))]
    keys += [(key, (*key[1], ("of", "component"))) for key in _functions(view)]
    for key, labels in keys:
        rows, line = _trend(view, key)
        if line is not None:
            steps = rows[-1].number - rows[0].number
            why = f"over {steps} steps" + ("" if line.significant else f"; {NO_TREND}")
            found.append(Value(line.slope * steps, labels, why))
    return found or Unknown(_FEW if _trend(view, (_REWARD, ()))[0] else reward_rise.hint)


@signal(
    title="Tokens of the reward rise",
    unit="tokens",
    actor="trainer",
    inputs=(_REWARD, _TOKENS),
    cadence="step",
    hint="this trainer reports no trained tokens",
)
def reward_rise_tokens(view: View) -> Answer:
    """Tokens trained in the steps of `reward_rise`, without the first of them. If another part of the run reports the
    reward than the tokens: tokens of the trainer's steps that ended in that time.
    """
    rows = view.steps.rows((_REWARD, ()), count=STEPS, until=view.now)
    if len(rows) < FEWEST:
        return Unknown(_FEW if rows else reward_rise.hint)
    if not any((_TOKENS, ()) in row.values for row in rows):
        return _trained_between(view, rows[0].ts, rows[-1].ts)
    if not all((_TOKENS, ()) in row.values for row in rows[1:]):
        return Unknown(reward_rise_tokens.hint)
    return [Value(total(rows[1:], _TOKENS))]


def _trained_between(view: View, start: float, end: float) -> Answer:
    steps = view.steps.rows((_TOKENS, ()), count=STEPS, until=view.now)
    inside = [row for row in steps if start < row.ts <= end]
    # The steps must reach back to the start, or the sum is too small.
    if not inside or steps[0].ts > start:
        return Unknown(reward_rise_tokens.hint)
    return [Value(total(inside, _TOKENS))]


@signal(
    title="Cost of the reward rise",
    unit="usd",
    actor="trainer",
    inputs=(_REWARD,),
    cadence="step",
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
def reward_rise_usd(view: View) -> Answer:
    """Dollars of the whole run between the first and the last step of `reward_rise`, at the present rate."""
    rows, rate = view.steps.rows((_REWARD, ()), count=STEPS, until=view.now), spend(view)
    if isinstance(rate, Unknown):
        return rate
    if len(rows) < FEWEST:
        return Unknown(_FEW if rows else reward_rise.hint)
    return [Value(rate[0] * (rows[-1].ts - rows[0].ts) / 3600)]
