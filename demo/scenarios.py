"""The scenarios: one frozen row each. A new scenario of an existing stack is only a new row.

Times in seconds, lengths in tokens, speeds in tokens per second.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from demo.faults import Fault

# ---- plans
# Optional parts of scenarios: losses and evaluations (see `fates`), other stacks.


@dataclass(frozen=True)
class LossPlan:
    """Shares of rollouts that end without a reward. A lost one stays in its group, masked out of the loss."""

    infra: float = 0.015
    environment: float = 0.008


@dataclass(frozen=True)
class EvalPlan:
    """An evaluation on a held-out set every so many versions, on a separate server."""

    environment: str
    every_versions: int = 5
    tasks: int = 8
    samples: int = 4
    # Single answers without a sandbox; far shorter than training responses, so that a mix-up would show.
    response_tokens_median: float = 300.0
    response_sigma: float = 0.4
    prompt_tokens: int = 180
    tokens_per_second: float = 90.0
    scoring_seconds: float = 0.5
    solve_probability: float = 0.6


@dataclass(frozen=True)
class SlimePlan:
    """A run of slime's `train_async.py`: one rollout is generated while the one before is trained on.

    Each rollout begins with `over_sampling_groups` groups; once a batch of them is complete the rest is aborted.
    """

    over_sampling_groups: int
    # GPUs per SGLang server (tensor parallel over nodes).
    engine_gpus: int
    # Parameters used per token, in billions: for a mixture of experts only a part.
    active_parameters_billion: float
    # Layers x attention heads x head dimension.
    attention_width: int
    # The trainer's parts in addition to `train_tokens_per_second_per_gpu`, which covers forward and backward.
    preprocess_seconds: float
    # Old log-probabilities, a forward pass: share of the training time.
    logprob_share: float
    # As on the engine's page.
    context_tokens: int
    weight_gigabytes: float
    kv_gigabytes: float

    def train_flops(self, lengths: Iterable[int]) -> float:
        """Forward and backward of these samples, as slime counts them.

        6 per active parameter and token, and 6 x width x length for a token's causal attention.
        """
        parameters = self.active_parameters_billion * 1e9
        return sum(6 * length * (parameters + self.attention_width * length) for length in lengths)


@dataclass(frozen=True)
class VerlPlan:
    """A synchronous run of verl's V1 trainer: the GPUs generate a batch, then train on it."""

    # GPUs per vLLM server.
    engine_gpus: int
    # The trainer's parts in addition to `train_tokens_per_second_per_gpu`, which covers all its passes over the batch.
    wake_seconds: float
    reward_seconds: float
    advantage_seconds: float
    # Old log-probabilities, a forward pass: share of those passes.
    logprob_share: float


@dataclass(frozen=True)
class AgentPlan:
    """Agents whose tools answer at once, so that an engine has one request per rollout; calls increase over time.

    A run of verl's V1 trainer `separate_async` with `algorithm.filter_groups`: groups of equal rewards are thrown away.
    """

    engine_gpus: int
    # Response tokens for each call of a tool.
    tokens_per_call: float
    # Mean calls of a rollout grow by this factor between two moments (seconds since the run began), evenly.
    growth: float
    grows_from: float
    grows_until: float
    # As in `VerlPlan`.
    logprob_share: float

    def factor(self, now: float) -> float:
        """Of the lengths at the beginning."""
        share = (now - self.grows_from) / (self.grows_until - self.grows_from)
        return 1.0 + (self.growth - 1.0) * min(1.0, max(0.0, share))


# ---- sandbox plan
# Sandbox parameters of a scenario: the provider's limits and behaviour, the images, and the agent's work.


@dataclass(frozen=True)
class JudgePlan:
    """A second account, on Modal: a judge for some rollouts, in its own sandbox for half a minute."""

    # The Modal App in which they are.
    app: str
    # Share of the rollouts that are judged.
    share: float = 0.25
    # Until the scheduler has it, and until its container runs: nothing is built, nothing is full.
    place_seconds: tuple[float, float] = (0.05, 0.3)
    start_seconds_median: float = 2.8
    start_sigma: float = 0.5
    slow_share: float = 0.01
    slow_seconds: tuple[float, float] = (20.0, 90.0)
    work_seconds_median: float = 22.0
    work_sigma: float = 0.4
    # Time-out of a sandbox, s, set at creation; it ends one that hangs.
    timeout_seconds: int = 300
    # Shares that do not end as they should.
    init_failed: float = 0.006
    oom_killed: float = 0.004
    hung: float = 0.003
    # Left over from the same older run as at the first provider.
    dangling: int = 2


@dataclass(frozen=True)
class SandboxPlan:
    """Parameters of the provider's account and of the rollouts in its sandboxes."""

    # Age of the run when the demo's clock begins: a spin-up of more than an hour does not show in an hour's history.
    age_seconds: float
    # (seconds since the run began, rollouts in flight), straight lines between.
    concurrency: tuple[tuple[float, int], ...]

    # The provider. Two field reports (uni-agent#47, e2b infra#2899) show that the number of simultaneous STARTS is the
    # bottleneck, not the number of running sandboxes.
    starting_limit: int = 128
    concurrent_limit: int = 1_000
    # A deleted sandbox's place is free this much later: the answer to DELETE comes before the machine is gone.
    release_seconds: float = 4.0
    # Spin-up of an ordinary sandbox once it has a starting slot: log-normal, 95 % within 36 s; and the tail.
    start_seconds_median: float = 20.0
    start_sigma: float = 0.35
    slow_share: float = 0.012
    slow_seconds_min: float = 60.0
    slow_seconds_max: float = 400.0
    # The first straggler is placed where nothing happens, and stays PENDING, after so many creations, each further one
    # after so many more; (min, max).
    first_straggler: tuple[int, int] = (40, 400)
    straggler_every: tuple[int, int] = (150, 750)
    straggler_seconds: tuple[float, float] = (5_400.0, 12_000.0)
    # Shares of creations that fail, by cause.
    image_pull_failed: float = 0.008
    timed_out: float = 0.004
    oom_killed: float = 0.006
    # The provider's own deadline for a start, after which the state is TIMEOUT.
    start_deadline_seconds: float = 300.0

    # Images: the tasks' repositories, the popular ones first. The first use builds a VM image.
    images: int = 48
    build_seconds_median: float = 170.0

    # Left over from a killed run: they are not deleted, and count toward the limit.
    dangling: int = 14
    dangling_run: str = "swe-32b-ablation-07"

    # The machine and its price.
    cpu_cores: int = 2
    memory_gb: int = 4
    disk_gb: int = 10
    usd_per_hour: float = 0.12
    credit_usd: float = 400.0

    # The agent's work: some turns with a command between two of them.
    turns_min: int = 3
    turns_max: int = 7
    tool_seconds_median: float = 3.5
    tool_sigma: float = 1.0
    tool_tokens_min: int = 80
    tool_tokens_max: int = 480
    # Cloning the repository into the sandbox that is up.
    setup_seconds: float = 2.0
    # Waits before another request for a failed sandbox, s; doubling, as verifiers' retries do.
    retry_seconds: float = 5.0
    retry_seconds_max: float = 60.0

    # None: no rollout is judged, and there is no second account.
    judges: JudgePlan | None = None

    def in_flight_cap(self, now: float) -> int:
        """Returns the limit of rollouts in flight `now` seconds into the run."""
        index = bisect_right(self.concurrency, now, key=lambda point: point[0])
        if index == 0 or index == len(self.concurrency):
            return self.concurrency[min(index, len(self.concurrency) - 1)][1]
        (since, low), (until, high) = self.concurrency[index - 1 : index + 1]
        return math.floor(low + (high - low) * (now - since) / (until - since))

    @property
    def mean_tool_tokens(self) -> float:
        """Tokens that commands add to a rollout's context: one command fewer than turns."""
        calls = (self.turns_min + self.turns_max) / 2 - 1
        return calls * (self.tool_tokens_min + self.tool_tokens_max) / 2


@dataclass(frozen=True)
class Scenario:
    """The parameters of one imaginary run: hardware, workload, scheduling."""

    name: str
    about: str
    run: str
    model: str
    parameters_billion: float
    environment: str

    # Generator: `engines` vLLM servers of one GPU each.
    engines: int = 4
    max_num_seqs: int = 128
    kv_tokens: int = 48_000
    # 2 x 40 layers x 8 KV heads x 128 x bf16 (Qwen3-14B); only shown on the page, as kv_cache_memory_bytes.
    kv_bytes_per_token: int = 163_840
    # One decode iteration = base + slope x running requests: a 14B model on an H200 reads its weights in ~6 ms, and
    # each sequence adds its attention and sampling. Throughput saturates at 1 / slope.
    iteration_base_seconds: float = 0.0060
    iteration_slope_seconds: float = 0.00008
    # 2 x 14.8e9 FLOP per token at half of an H200's dense bf16 peak.
    prefill_tokens_per_second: float = 16_000.0
    # Share of the KV cache an admission must leave free. vLLM's 0.01 thrashes with long responses; operators raise it.
    kv_watermark: float = 0.04
    # Mooncake-style in-memory swap of the weights; the engines stand still meanwhile.
    pause_seconds: float = 1.0

    # Workload: prompts uniform, responses log-normal, cut at max_tokens.
    prompt_tokens_min: int = 120
    prompt_tokens_max: int = 420
    response_tokens_median: float = 800.0
    response_sigma: float = 0.55
    max_tokens: int = 4_096
    # Beta(a, b) of a group's solve probability; below 1 it piles up at 0 and 1, as real task sets do.
    solve_alpha: float = 0.9
    solve_beta: float = 0.8
    # A symbolic math verifier; no sandbox.
    scoring_seconds: float = 0.4

    # Scheduling.
    group_size: int = 8
    batch_samples: int = 256
    # Just above what the trainer consumes: 57 in flight deliver its 7.7 rollouts/s.
    max_in_flight: int = 60
    max_off_policy_steps: int = 8
    # Batches the orchestrator may be ahead of the published policy (one in the trainer, the rest in the buffer) before
    # dispatch stops. prime-rl hard-codes TARGET_LAG = 1 plus what it holds; a fraction keeps the buffer off the edge.
    max_lead_batches: float = 2.5

    # Trainer.
    train_gpus: int = 4
    # Forward, backward and recomputation at an MFU of about 23 % for 14B.
    train_tokens_per_second_per_gpu: float = 2_600.0
    compute_noise: float = 0.03
    # Hand-over of a batch that is ready; most of what a healthy trainer waits.
    pack_seconds: float = 1.5
    load_seconds: float = 0.25
    broadcast_seconds: float = 1.6
    checkpoint_every: int = 10
    checkpoint_seconds: float = 5.0
    # Dense bf16 peak of a trainer GPU; None: an H100's or H200's.
    gpu_peak_flops: float | None = None

    # What rollouts need in addition to the engines; None: nothing, as for a math task.
    sandboxes: SandboxPlan | None = None
    # Rollouts that are lost permanently, and evaluations; None: there are none.
    losses: LossPlan | None = None
    evals: EvalPlan | None = None
    # Its stack, where it is not prime-rl with vLLM.
    slime: SlimePlan | None = None
    verl: VerlPlan | None = None
    agents: AgentPlan | None = None
    # Faults of the scenario; None: none.
    faults: tuple[Fault, ...] | None = None

    @property
    def peak_flops(self) -> float:
        return 989e12 if self.gpu_peak_flops is None else self.gpu_peak_flops

    @property
    def train_tokens_per_second(self) -> float:
        """Speed of the whole trainer, prompt and response tokens per second."""
        return self.train_gpus * self.train_tokens_per_second_per_gpu

    @property
    def mean_response_tokens(self) -> float:
        """Mean of the log-normal with its cap, in tokens."""
        return _capped_mean(math.log(self.response_tokens_median), self.response_sigma, self.max_tokens)

    @property
    def mean_prompt_tokens(self) -> float:
        return (self.prompt_tokens_min + self.prompt_tokens_max) / 2

    @property
    def batch_groups(self) -> int:
        return self.batch_samples // self.group_size


def _capped_mean(mu: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)] for log-normal X."""
    z = (math.log(cap) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * _normal_cdf(z - sigma) + cap * (1 - _normal_cdf(z))


def _normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


_ROWS = (
    Scenario(
        name="healthy",
        about="Generator and trainer matched: short waits, a buffer between one and two batches.",
        run="math-14b-healthy",
        model="Qwen/Qwen3-14B",
        parameters_billion=14.8,
        environment="math",
    ),
    Scenario(
        name="generator-bound",
        about="A fast trainer behind four engines whose KV cache is full: it waits two thirds of each step.",
        run="math-2b-generator-bound",
        model="Qwen/Qwen3-1.7B",
        parameters_billion=1.7,
        environment="math",
        kv_tokens=156_000,
        kv_bytes_per_token=114_688,
        # A smaller model prefills faster; its small engines decode no faster than the 14B ones.
        prefill_tokens_per_second=40_000.0,
        # Usage then hovers at 0.9, and about one request in six is preempted.
        kv_watermark=0.16,
        response_tokens_median=2_150.0,
        response_sigma=0.7,
        max_tokens=8_192,
        # 100 an engine; about 70 fit into its KV cache, the others wait: a queue one sees on any single page.
        max_in_flight=400,
        train_tokens_per_second_per_gpu=21_000.0,
    ),
    Scenario(
        name="trainer-bound",
        about="A slow trainer: the buffer is full, the gate closes dispatch at its bound, the engines idle.",
        run="math-14b-trainer-bound",
        model="Qwen/Qwen3-14B",
        parameters_billion=14.8,
        environment="math",
        # An MFU of 12 %: 4.6 samples/s where the engines could make 11.
        train_tokens_per_second_per_gpu=1_400.0,
        max_in_flight=90,
    ),
    Scenario(
        name="reward-bound",
        about="A judge that takes half a minute: rollouts are complete and unscored, the engines have room.",
        run="math-14b-reward-bound",
        model="Qwen/Qwen3-14B",
        parameters_billion=14.8,
        environment="math",
        scoring_seconds=28.0,
        # With the scoring of a verifier they would be far more than enough.
        max_in_flight=120,
    ),
    Scenario(
        name="stalled",
        about="A healthy run whose trainer hangs: its step stays open, the buffer fills, the engines idle.",
        run="math-14b-stalled",
        model="Qwen/Qwen3-14B",
        parameters_billion=14.8,
        environment="math",
        # Half an hour later it cannot be a long step any more; the demo's first hour then has 10 minutes left.
        faults=(Fault("trainer-hang", 1_200.0),),
    ),
    Scenario(
        name="gb300-sandbox-wall",
        about="Agents in sandboxes, ten times as many at once: boots pile up, engines idle, the trainer waits.",
        run="swe-32b-sandbox-wall",
        model="Qwen/Qwen3-32B",
        parameters_billion=32.8,
        environment="swe",
        # A GB300 has room for far more sequences than the run needs: 288 GB, 33 of them weights in FP8.
        engines=2,
        max_num_seqs=512,
        kv_tokens=1_500_000,
        # 2 x 64 layers x 8 KV heads x 128 x FP8.
        kv_bytes_per_token=131_072,
        # 33 GB at 8 TB/s; a sequence of 2,000 tokens adds its 0.26 GB of KV.
        iteration_base_seconds=0.0052,
        iteration_slope_seconds=0.00004,
        prefill_tokens_per_second=30_000.0,
        prompt_tokens_min=400,
        prompt_tokens_max=1_400,
        response_tokens_median=1_750.0,
        response_sigma=0.5,
        max_tokens=6_000,
        # The repository's own tests, run in the sandbox.
        scoring_seconds=15.0,
        # The end of the plan's ramp.
        max_in_flight=960,
        train_gpus=8,
        # An MFU of 43 %: 10 samples/s, a little more than 960 rollouts deliver that boot as they should.
        train_tokens_per_second_per_gpu=5_500.0,
        gpu_peak_flops=2.5e15,
        sandboxes=SandboxPlan(
            # Old enough that at the end of the first hour one has been pending for more than an hour.
            age_seconds=1_200.0,
            concurrency=((0.0, 96), (1_500.0, 96), (3_300.0, 960)),
            judges=JudgePlan(app="swe-judges"),
        ),
        losses=LossPlan(),
        evals=EvalPlan(environment="math-held-out"),
    ),
    Scenario(
        name="qwen3-235b-slime",
        about="slime over-samples 2.5 times and aborts the slowest three in five; the trainer waits 30% of its step.",
        run="qwen3-235b-slime",
        model="Qwen/Qwen3-235B-A22B",
        parameters_billion=235.0,
        environment="math",
        # 192 GPUs in servers of 16: 235 GB of FP8 weights leave room for 2.4 million tokens of KV and more.
        engines=12,
        max_num_seqs=512,
        kv_tokens=2_400_000,
        # 2 x 94 layers x 4 KV heads x 128 x FP8.
        kv_bytes_per_token=96_256,
        # Nearly every expert is read in each iteration; 80 sequences then decode at 146 tokens/s each.
        iteration_base_seconds=0.00525,
        iteration_slope_seconds=0.00002,
        prefill_tokens_per_second=24_000.0,
        kv_watermark=0.01,
        pause_seconds=0.0,
        prompt_tokens_min=150,
        prompt_tokens_max=650,
        # Answers of 15,000 tokens: with them the published samples/s have the published MFU on H200s.
        response_tokens_median=15_600.0,
        response_sigma=0.55,
        max_tokens=32_768,
        solve_alpha=0.9,
        solve_beta=0.8,
        scoring_seconds=0.4,
        batch_samples=384,
        train_gpus=64,
        train_tokens_per_second_per_gpu=724.0,
        broadcast_seconds=6.5,
        slime=SlimePlan(
            over_sampling_groups=120,
            engine_gpus=16,
            active_parameters_billion=22.0,
            # 94 layers x 64 heads x 128.
            attention_width=770_048,
            preprocess_seconds=2.1,
            logprob_share=0.24,
            context_tokens=40_960,
            weight_gigabytes=14.7,
            kv_gigabytes=14.4,
        ),
    ),
    Scenario(
        name="math-sync-colocated",
        about="verl's synchronous trainer: eight GPUs generate a batch, wait for its last answer, then train on it.",
        run="math-8b-sync",
        model="Qwen/Qwen3-8B",
        parameters_billion=8.2,
        environment="math",
        engines=4,
        max_num_seqs=256,
        # Two GPUs each, half of their memory: the other half is the trainer's.
        kv_tokens=400_000,
        # 2 x 36 layers x 8 KV heads x 128 x bf16.
        kv_bytes_per_token=147_456,
        iteration_base_seconds=0.0062,
        iteration_slope_seconds=0.00006,
        prefill_tokens_per_second=40_000.0,
        kv_watermark=0.01,
        pause_seconds=0.0,
        # Lengths that hardly differ: a tail all the same, but not one that holds the run back.
        response_tokens_median=1_300.0,
        response_sigma=0.3,
        max_tokens=4_096,
        batch_samples=512,
        train_gpus=8,
        # All passes over the batch; the update alone has an MFU of 15 %.
        train_tokens_per_second_per_gpu=2_350.0,
        broadcast_seconds=3.2,
        checkpoint_every=20,
        checkpoint_seconds=14.0,
        verl=VerlPlan(
            engine_gpus=2,
            wake_seconds=1.4,
            reward_seconds=1.8,
            advantage_seconds=0.12,
            logprob_share=0.24,
        ),
    ),
    Scenario(
        name="glm5-easy-curriculum",
        about="Agents call more and more tools on tasks that most rollouts solve: the trainer waits 3/4 of its step.",
        run="glm5-agents",
        model="zai-org/GLM-5",
        # Of its experts a token passes through 40 billion parameters.
        parameters_billion=40.0,
        environment="search",
        engines=6,
        max_num_seqs=64,
        kv_tokens=900_000,
        kv_bytes_per_token=90_112,
        iteration_base_seconds=0.0150,
        iteration_slope_seconds=0.00010,
        prefill_tokens_per_second=20_000.0,
        kv_watermark=0.01,
        prompt_tokens_min=400,
        prompt_tokens_max=1_400,
        response_tokens_median=2_270.0,
        response_sigma=0.45,
        max_tokens=32_768,
        # All eight solve more than half of the tasks.
        solve_alpha=1.6,
        solve_beta=0.30,
        batch_samples=128,
        max_in_flight=330,
        max_off_policy_steps=12,
        # All passes over the batch; the update alone has an MFU of 21 %.
        train_gpus=64,
        train_tokens_per_second_per_gpu=650.0,
        broadcast_seconds=3.8,
        checkpoint_every=20,
        checkpoint_seconds=12.0,
        agents=AgentPlan(
            engine_gpus=8,
            tokens_per_call=125.0,
            growth=2.55,
            grows_from=400.0,
            grows_until=2_900.0,
            logprob_share=0.24,
        ),
    ),
)

SCENARIOS: dict[str, Scenario] = {row.name: row for row in _ROWS}
