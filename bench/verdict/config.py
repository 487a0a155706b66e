"""A simulated run's configuration, and how one is drawn from a seed. Times in seconds, lengths in tokens."""

import math
import random
from dataclasses import dataclass, replace

KINDS = (
    "generator_slots", "generator_kv", "generator_latency", "generator_tail", "boot", "tool", "score", "scorer",
    "zero_filtered", "zero_trained", "trainer", "trainer", "overhead_sync", "overhead_other", "gate", "prompts",
    "balanced", "balanced", "sync", "sync_tail", "sync_overhead", "sync_zero",
)  # fmt: skip
"""What a configuration is drawn around; what holds it back is measured, not taken from here."""

REAL_TUNING, REAL_JUDGING = range(200_000, 300_000), range(8_250_000, 8_300_000)
"""Seeds of runs with the noise of the recorded ones (tests/testdata/real_runs): `_real`."""

# Of the recordings: seconds of a step, engines, and a batch of 16 samples in groups of 4 (others have more).
REAL_STEP_SECONDS = (2.0, 15.0)
REAL_ENGINES = 3
REAL_GROUPS = (4, 4, 8)
REAL_BATCHES = (16, 32, 64)
# TRL traces 8 rollouts of every 8th policy version.
REAL_TRACED = (0, 8, 8, 4)
# Engines of the recordings generated nothing for 5 to 30 % of the time, in bursts.
REAL_BURST_EVERY_SECONDS, REAL_BURST_SHARES = (5.0, 40.0), (0.05, 0.30)
# Spread of the logarithm of the trainer's seconds on a machine that others use, too.
REAL_JITTER = (0.05, 0.40)

Change = tuple[float, str, float]
"""(when, field of the configuration, its new value)."""


@dataclass(frozen=True, slots=True)
class Config:
    """One run.

    Attributes:
        slots: requests an engine runs at once; token_s, load_s: seconds per token and request, alone and per neighbour
            to the power `bend`.
        kv_tokens: of one engine's cache; prompt, tokens: of a rollout; sigma: spread of their logarithm.
        score: seconds of a rollout, or of a group where `scorers` take one group at a time (0: all in parallel).
        cap: rollouts in flight; oversample: more of a group are begun than needed, the last are aborted.
        dispatch_s: the orchestrator's seconds per rollout.
        policy: production is held by a full queue (`queue`), that and drops at consumption (`drop`), a staleness gate
            (`gate`), or nothing (`none`); bound: in batches, or versions.
        every: steps from checkpoint to checkpoint; pause: engines stand still while weights are published.
        page: seconds between two pages; lag: from the end of a step to its row.
        census, phases: which sources report the states of rollouts.
        row_only: queue and rollouts in flight are in the step's row alone: no page has them.
        traced: policy versions from one batch with records to the next, of which `traces` rollouts are recorded, and
            the row lacks the groups' outcomes; 0: no records, exact outcomes in each row.
        burst_every, burst: engines stand still for `burst` seconds after every `burst_every` (0: never).
        resumes: seconds after which a trainer that was stopped goes on.
        trainer_gpus, generator_gpus: of each side; 0: the run does not state them.
    """

    seed: int
    kind: str
    sync: bool = False
    engines: int = 2
    slots: int = 64
    token_s: float = 0.01
    load_s: float = 0.0
    bend: float = 1.0
    kv_tokens: float = 1e9
    prompt: float = 300.0
    tokens: float = 1000.0
    sigma: float = 0.5
    turns: int = 1
    boot: float = 0.0
    tool: float = 0.0
    score: float = 0.0
    scorers: int = 0
    cap: int = 128
    oversample: int = 0
    dispatch_s: float = 0.0
    batch: int = 64
    group: int = 8
    zero: float = 0.0
    easy: float = 0.5
    filtered: bool = False
    policy: str = "queue"
    bound: float = 2.0
    compute: float = 20.0
    publish: float = 1.0
    checkpoint: float = 0.0
    every: int = 5
    evaluate: float = 0.0
    other: float = 0.0
    pause: bool = False
    jitter: float = 0.05
    page: float = 5.0
    lag: float = 3.0
    census: bool = True
    phases: bool = False
    horizon: float = 900.0
    changes: tuple[Change, ...] = ()
    fault: tuple[float, str] = (math.inf, "")
    row_only: bool = False
    traced: int = 0
    traces: int = 8
    burst_every: float = 0.0
    burst: float = 0.0
    resumes: float = math.inf
    trainer_gpus: int = 0
    generator_gpus: int = 0

    @property
    def overhead(self) -> float:
        """Mean seconds of a step that neither wait nor compute."""
        return self.publish + self.checkpoint / self.every + self.evaluate + self.other

    def changed(self, **fields: float) -> "Config":
        return replace(self, **fields)  # type: ignore[arg-type]


def draw(seed: int, kind: str = "") -> Config:
    """The run of a seed."""
    rng = random.Random(seed)
    if is_real(seed):
        return _real(rng, seed, kind)
    kind = kind or KINDS[seed % len(KINDS)]
    return _sync(rng, seed, kind) if kind.startswith("sync") else _async(rng, seed, kind)


def is_real(seed: int) -> bool:
    """Whether the seed is of a run with the noise of the recorded ones."""
    return seed in REAL_TUNING or seed in REAL_JUDGING


def between(rng: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _sizes(rng: random.Random) -> dict[str, int]:
    group = rng.choice((4, 8, 16))
    # With fewer than four groups a batch depends on single groups.
    return {
        "engines": rng.randint(1, 4),
        "batch": max(4 * group, rng.choice((16, 32, 64, 128, 256, 512))),
        "group": group,
    }


def _noise(rng: random.Random, step: float) -> dict[str, float | bool]:
    told = rng.choice((0, 1, 2))
    return {
        "page": rng.choice((5.0, 10.0)), "lag": min(between(rng, 1.0, 60.0), max(2.0, step / 2)),
        "jitter": rng.uniform(0.02, 0.10), "sigma": rng.uniform(0.2, 0.8), "census": told != 1, "phases": told != 0,
    }  # fmt: skip


# ---- asynchronous: a rollout takes 1 and its phases are shares of it; then all times are scaled to the step's length

# kind -> share of a rollout's time in boot, tools, scoring.
_SHARES = {"boot": (0.55, 0.0, 0.0), "tool": (0.05, 0.6, 0.02), "score": (0.0, 0.0, 0.6)}
_LITTLE = ((0.0, 0.0, 0.0), (0.05, 0.15, 0.0), (0.02, 0.1, 0.05), (0.0, 0.0, 0.1), (0.1, 0.3, 0.05))
# kind -> production rate divided by the trainer's rate.
_STARVED = ("generator", "boot", "tool", "score", "scorer", "zero_filtered", "gate", "prompts")


def _async(rng: random.Random, seed: int, kind: str) -> Config:
    return _of_sizes(rng, seed, kind, _sizes(rng), between(rng, 10.0, 1200.0))


def _real(rng: random.Random, seed: int, kind: str) -> Config:
    """A run like the recorded ones: few engines, short steps, only a log, records of a few rollouts, bursts."""
    asynchronous = [one for one in KINDS if not one.startswith("sync")]
    sizes = {
        "engines": rng.randint(1, REAL_ENGINES), "batch": rng.choice(REAL_BATCHES), "group": rng.choice(REAL_GROUPS),
    }  # fmt: skip
    sizes["batch"] = max(sizes["batch"], 4 * sizes["group"])
    step = between(rng, *REAL_STEP_SECONDS)
    made = _of_sizes(rng, seed, kind or asynchronous[seed % len(asynchronous)], sizes, step)
    every = between(rng, *REAL_BURST_EVERY_SECONDS) if rng.random() < 0.5 else 0.0
    # Records of trained rollouts do not contain groups that a filter removed before, so the row has their share.
    traced = 0 if made.filtered else rng.choice(REAL_TRACED)
    return replace(
        made, page=5.0, lag=min(made.lag, 5.0), census=False, row_only=rng.random() < 0.7, traced=traced,
        phases=made.phases or made.kind in ("boot", "tool", "score"), jitter=between(rng, *REAL_JITTER),
        burst_every=every, burst=every * rng.uniform(*REAL_BURST_SHARES),
    )  # fmt: skip


def _of_sizes(rng: random.Random, seed: int, kind: str, sizes: dict[str, int], step: float) -> Config:
    made = Config(seed, kind, **sizes, **_noise(rng, step), **_rollout(rng, kind, sizes))  # type: ignore[arg-type]
    made = _engines(rng, made)
    rate, made = _special(rng, made, _rate(made))
    zero = {"zero": _zero(rng, kind), "filtered": kind == "zero_filtered" or rng.random() < 0.4}
    if kind == "zero_trained":
        zero["filtered"] = False
    if zero["filtered"]:
        rate *= 1 - zero["zero"]
    made = made.changed(**zero, easy=rng.choice((0.1, 0.5, 0.9)))
    busy = made.batch / rate * _ratio(rng, kind)
    made = _trainer(rng, made, busy)
    return _scaled(made, step / max(busy, made.batch / rate), step)


def _ratio(rng: random.Random, kind: str) -> float:
    """The trainer's time for a batch divided by production's."""
    if kind.startswith(_STARVED):
        return rng.uniform(0.35, 0.8)
    return rng.uniform(0.92, 1.1) if kind == "balanced" else rng.uniform(1.1, 2.5)


def _zero(rng: random.Random, kind: str) -> float:
    return rng.uniform(0.5, 0.8) if kind.startswith("zero") else rng.choice((0.0, 0.05, 0.2, 0.35))


def _rollout(rng: random.Random, kind: str, sizes: dict[str, int]) -> dict[str, float]:
    boot, tool, score = (share * rng.uniform(0.9, 1.2) for share in _SHARES.get(kind, rng.choice(_LITTLE)))
    turns = rng.randint(2, 4) if tool else 1
    cap = max(2 * sizes["group"], round(sizes["batch"] * rng.uniform(0.75, 2.0)))
    over = rng.randint(1, sizes["group"]) if kind == "generator_tail" else 0
    return {
        "boot": boot, "tool": tool / max(1, turns - 1), "score": score, "turns": turns, "cap": cap,
        "oversample": over, "prompt": between(rng, 100, 2000), "tokens": between(rng, 300, 3000),
    }  # fmt: skip


def _engines(rng: random.Random, made: Config) -> Config:
    """Sets the engines: cache for all rollouts in flight, or clearly less."""
    inside = 1 - made.boot - made.tool * (made.turns - 1) - made.score
    running = max(1.0, made.cap * inside / made.engines)
    loaded = rng.uniform(0.05, 0.45)
    each = inside / made.tokens
    room = rng.uniform(1.6, 3.0)
    slots = running * (rng.uniform(0.3, 0.6) if made.kind == "generator_slots" else room)
    live = made.prompt + 0.6 * made.tokens
    kv = running * live * (rng.uniform(0.3, 0.6) if made.kind == "generator_kv" else rng.uniform(1.5, 3.0))
    return made.changed(
        slots=max(2, round(slots)), token_s=each * (1 - loaded), load_s=each * loaded / running,
        kv_tokens=max(kv, 4 * (made.prompt + 4 * made.tokens)),
    )  # fmt: skip


def _rate(made: Config) -> float:
    """Rollouts per unit of time by a formula, used only to choose the trainer's speed."""
    inside = 1 - made.boot - made.tool * (made.turns - 1) - made.score
    running = made.cap * inside / made.engines
    live = made.prompt + 0.6 * made.tokens
    most = min(running, made.slots, 0.95 * made.kv_tokens / live)
    engines = made.engines * most / (made.tokens * (made.token_s + made.load_s * most))
    return min(made.cap, engines) * made.group / (made.group + made.oversample)


def _special(rng: random.Random, made: Config, rate: float) -> tuple[float, Config]:
    """Limits of production other than engines and environment."""
    if made.kind == "scorer":
        slow = rate * rng.uniform(0.3, 0.6)
        return slow, made.changed(scorers=1, score=made.group / slow)
    if made.kind == "prompts":
        slow = rate * rng.uniform(0.25, 0.55)
        return slow, made.changed(dispatch_s=1 / slow)
    if made.kind == "gate":
        # No rollout begins before the batch is published, and the slowest one takes a multiple of the mean.
        return made.batch / 2.2, made.changed(cap=max(made.cap, 2 * made.batch))
    return rate, made


def _trainer(rng: random.Random, made: Config, busy: float) -> Config:
    share = rng.uniform(0.02, 0.12)
    if made.kind.startswith("overhead"):
        share = rng.uniform(0.3, 0.6)
    over, of = busy * share, "publish" if made.kind != "overhead_other" else rng.choice(("checkpoint", "evaluate"))
    parts = {"publish": 0.02 * busy, "other": 0.01 * busy} | {of: over}
    if of == "checkpoint":
        parts["checkpoint"] *= made.every
    policy = "gate" if made.kind == "gate" else rng.choice(("queue", "queue", "drop", "gate"))
    bound = rng.choice((0.0, 0.0, 1.0)) if made.kind == "gate" else rng.choice((1.0, 2.0, 3.0))
    if made.kind != "gate" and policy != "queue":
        bound += math.ceil((made.cap + made.batch) / made.batch)
    return made.changed(
        compute=max(0.05 * busy, busy - over - 0.03 * busy), policy=policy, bound=bound,
        pause=rng.random() < 0.3, **parts,
    )  # type: ignore[arg-type]  # fmt: skip


_TIMES = ("token_s", "load_s", "boot", "tool", "score", "dispatch_s", "compute", "publish", "checkpoint", "evaluate",
          "other")  # fmt: skip
STEPS, LEAST_SECONDS = 20.0, 600.0


def _scaled(made: Config, by: float, step: float) -> Config:
    """All times by one factor; long enough for seventeen steps."""
    horizon = max(STEPS * step, min(LEAST_SECONDS, 9000 * step / made.batch))
    return made.changed(**{name: getattr(made, name) * by for name in _TIMES}, horizon=horizon)


# ---- synchronous


def _sync(rng: random.Random, seed: int, kind: str) -> Config:
    sizes, step = _sizes(rng), between(rng, 20.0, 1200.0)
    made = Config(seed, kind, sync=True, policy="none", **sizes, **_noise(rng, step))  # type: ignore[arg-type]
    running = made.batch / made.engines
    sigma = rng.uniform(0.9, 1.3) if kind == "sync_tail" else rng.uniform(0.1, 0.35)
    tokens = between(rng, 300, 3000)
    slowest = math.exp(sigma * math.sqrt(2 * math.log(made.batch)) - sigma**2 / 2)
    generation = rng.uniform(0.5, 0.8) if kind == "sync_tail" else rng.uniform(0.3, 0.6)
    over = rng.uniform(0.3, 0.5) if kind == "sync_overhead" else rng.uniform(0.02, 0.1)
    made = made.changed(
        sigma=sigma, tokens=tokens, cap=made.batch, slots=max(2, round(running * 1.2)),
        token_s=generation / tokens / slowest * 0.9, load_s=generation / tokens / slowest * 0.1 / running,
        compute=max(0.1, 1 - generation - over), publish=over, score=0.02,
        zero=rng.uniform(0.52, 0.8) if kind == "sync_zero" else rng.choice((0.0, 0.1, 0.3)),
        kv_tokens=running * (made.prompt + tokens) * 3,
    )  # fmt: skip
    return _scaled(made, step, step)
