"""The scenarios: one frozen row each. A new one is a new row, nothing else, as long as the stack is the same.

Times in seconds, lengths in tokens, speeds in tokens per second.
"""

import math
from dataclasses import dataclass

from server.demo.sandbox_plan import JudgePlan, SandboxPlan


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
    # Just above what the trainer eats: 57 in flight deliver its 7.7 rollouts/s.
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

    # What rollouts need besides the engines; None: nothing, as a math task.
    sandboxes: SandboxPlan | None = None

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
        name="gb300-sandbox-wall",
        about="Agents in sandboxes, ten times as many at once: boots pile up, engines idle, the trainer waits.",
        run="swe-32b-sandbox-wall",
        model="Qwen/Qwen3-32B",
        parameters_billion=32.8,
        environment="swe",
        # A GB300 has room for far more sequences than ever come: 288 GB, 33 of them weights in FP8.
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
    ),
)

SCENARIOS: dict[str, Scenario] = {row.name: row for row in _ROWS}
