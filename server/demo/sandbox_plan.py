"""Sandbox parameters of a scenario: the provider's limits and behaviour, the images, and the agent's work.

Times in seconds. One frozen row per scenario, as in `scenarios`.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass


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
