"""A sandbox wall: 960 rollouts meet a starting limit of 128. What completes looks fine, and one waits an hour."""

import math
from functools import cache

from msgspec import structs

from dashboard.widgets.format import series_name
from server.query.types import SignalInfo, SignalNow, SignalState
from server.store.types import SandboxRow
from tests.dashboard import fake
from tests.dashboard.fake import Curve, noise, signal
from tests.dashboard.memory_reader import MemoryReader

NOW, WALL, MATH, BARE = fake.NOW, "gb300-sandbox-wall", "math-sync", "no-provider"
# Asked for 62 minutes ago, and not ready yet.
STRAGGLER = 3720.0
EVERY = 1.6
NOT_READ = 'no sandbox provider is read: add it as a target (collector = "prime_sandboxes", ...)'
NO_EXEC = "no source times commands in sandboxes (agent-sandbox's router does; so can a push)"
INFOS = (
    SignalInfo("sandbox_oldest_pending_seconds", "Oldest pending", "seconds", "", NOT_READ, "sandbox", 180.0, 600.0),
    SignalInfo("sandbox_spinup_latency_seconds", "Spin-up", "seconds", "", NOT_READ, "sandbox", 60.0, 120.0),
    SignalInfo("sandbox_quota_used_ratio", "Quota", "ratio", "", "no provider reports its quota", "sandbox", 0.8, 0.9),
    SignalInfo("sandbox_exec_seconds", "Commands", "seconds", "", NO_EXEC, "sandbox"),
    SignalInfo("sandboxes", "Sandboxes", "sandboxes", "", NOT_READ, "sandbox"),
    SignalInfo("sandboxes_dangling", "Dangling", "sandboxes", "", NOT_READ, "sandbox", 1.0),
    SignalInfo("sandbox_credit_hours", "Credit lasts", "hours", "", "no provider reports its credit", "sandbox", 48.0,
               24.0, higher_is_worse=False),
)  # fmt: skip
IMAGES = ("swe-bench/astropy:1.3", "swe-bench/django:3.2", "swe-bench/sympy:1.9", "swe-bench/matplotlib:3.5")


def box(number: int, state: str, asked: float, **more: object) -> SandboxRow:
    """A sandbox of the run, asked for ``asked`` seconds ago; ``ready``, ``ended``: seconds ago, too."""
    made = SandboxRow(
        "prime", f"sbx-{number:05d}", state, name=f"trace-{number:06x}", target="prime", run_key=WALL,  # type: ignore[arg-type]
        provider_state=state.upper(), requested_at=NOW - asked, image=IMAGES[number % 4], seen_at=NOW - 2,
    )  # fmt: skip
    return structs.replace(made, **more)


def ready(number: int, asked: float, took: float, state: str = "running", **more: object) -> SandboxRow:
    """One that became usable after ``took`` seconds."""
    at = NOW - asked
    times = {"started_at": at + took / 2, "ready_at": at + took, "spinup_seconds": took, "latency_source": "server"}
    return box(number, state, asked, **times | {"image_cached": took < 60, **more})


def _took(number: int, asked: float) -> float:
    """Most between 10 and 40 s; a few had to build their image."""
    luck = (noise(number, 21) + 1) / 2
    return 95 + 160 * luck if number % 61 == 0 else 9 + 26 * luck + 5 * max(0.0, 1 - asked / 2400)


@cache
def boxes() -> tuple[SandboxRow, ...]:
    """In the order in which they were asked for: those that ended, 780 that run, the failed, and 180 that wait."""
    made: list[SandboxRow] = [
        box(1, "starting", STRAGGLER, provider_state="PENDING", image=IMAGES[0], image_cached=False)
    ]
    count = int(3900 / EVERY)
    for i in range(count):
        asked = 3900 - EVERY * i
        if asked < 70:
            break
        number = 10 + i
        if i % 47 == 5:
            made.append(_failed(number, i, asked))
        else:
            took = _took(number, asked)
            over = max(2.0, asked - took - 600)
            alive = len(made) >= int((3900 - 70) / EVERY) - 795
            made.append(
                ready(number, asked, took) if alive else ready(number, asked, took, "terminated", ended_at=NOW - over)
            )
    return (*made, *_waiting(), *_dangling())


def _failed(number: int, i: int, asked: float) -> SandboxRow:
    cause, detail = (
        ("timeout", "Sandbox failed to become ready within 115 s"),
        ("image", "IMAGE_PULL_FAILED: manifest for swe-bench/sympy:1.9 not found"),
        ("quota", "HTTP 403: sandbox limit reached (960 of 960)"),
        ("timeout", "Sandbox failed to become ready within 115 s"),
        ("oom", "OOM_KILLED"),
    )[i // 47 % 5]
    return box(number, "failed", asked, cause=cause, detail=detail, ended_at=NOW - asked + 30)


def _waiting() -> list[SandboxRow]:
    """127 more that start, 8 images that are built, 44 in the queue."""
    starting = [
        box(5000 + i, "starting", 1310 / (1 + i) ** 0.8 + 20, provider_state="PROVISIONING") for i in range(127)
    ]
    building = [box(5200 + i, "building_image", 300 - 30 * i, image_cached=False) for i in range(8)]
    return starting + building + [box(5300 + i, "queued", 60 - i) for i in range(44)]


def _dangling() -> list[SandboxRow]:
    runs = ("qwen3-8b-swe-0412", "qwen3-8b-swe-0412", "", "qwen3-8b-swe-0412", "eval-tuesday")
    return [
        box(9000 + i, "running", 93_000 + 1700 * i, run_key=run, own=False, dangling=True, name="", image=IMAGES[i % 4])
        for i, run in enumerate(runs)
    ]


def _ramp(t: float) -> float:
    """Concurrency 96 -> 960 within the hour."""
    return 96 + 864 / (1 + math.exp(-(t - NOW + 1700) / 260)) if NOW - t > 5 else 960.0


def _starting(t: float) -> float:
    return min(128.0, 12 + 0.35 * max(0.0, _ramp(t) - 150)) if NOW - t > 5 else 128.0


def _oldest(t: float) -> float:
    return max(24 + 5 * noise(t, 4), t - NOW + STRAGGLER)


def _p95(t: float) -> float:
    return 37 + 0.8 * noise(t, 5) if NOW - t > 5 else 38.0


@cache
def _curves() -> tuple[tuple[SignalNow, Curve], ...]:
    def of(state: str, curve: Curve) -> tuple[SignalNow, Curve]:
        return signal_of("sandboxes", "sandboxes", state=state), curve

    def waits(t: float) -> float:
        return 44.0 if NOW - t <= 5 else max(0.0, 0.055 * (_ramp(t) - 200))

    return (
        of("starting", _starting),
        of("queued", waits),
        of("building_image", lambda t: 8.0 if NOW - t <= 5 else 3.0),
        of("running", lambda t: 780.0 if NOW - t <= 5 else max(0.0, _ramp(t) - _starting(t) - waits(t) - 3)),
        of("paused", lambda t: 0.0),
        of("stopping", lambda t: 0.0),
        of("unknown", lambda t: 0.0),
        (signal_of("sandbox_oldest_pending_seconds", "seconds", "critical"), _oldest),
        (signal_of("sandbox_spinup_latency_seconds", "seconds", image="all", stat="p95"), _p95),
        (signal_of("sandbox_spinup_latency_seconds", "seconds", image="all", stat="p50"), lambda t: 24.0),
        (signal_of("sandbox_spinup_latency_seconds", "seconds", image="all", stat="max"), lambda t: 231.0),
        (signal_of("sandbox_spinup_latency_seconds", "seconds", image="cached", stat="p95"), lambda t: 36.0),
        (
            signal_of("sandbox_spinup_latency_seconds", "seconds", "critical", image="built", stat="p95"),
            lambda t: 214.0,
        ),
        (signal_of("sandboxes_dangling", "sandboxes", "watch"), lambda t: 5.0),
        (signal_of("sandboxes_unreachable", "sandboxes"), lambda t: 0.0),
        (signal_of("sandbox_quota_used_ratio", "ratio", "critical", resource="starting"), lambda t: _starting(t) / 128),
        (signal_of("sandbox_quota_used_ratio", "ratio", "critical", resource="concurrent"), lambda t: _ramp(t) / 1000),
        (signal_of("sandbox_quota_used_ratio", "ratio", resource="cpu"), lambda t: 0.62),
        *((of_quota("limit", what, who), level(value)) for what, who, _, value in QUOTAS),
        *((of_quota("used", what, who), level(value)) for what, who, value, _ in QUOTAS),
        (signal_of("sandbox_failure_ratio", "ratio"), _broken),
        (signal_of("zero_advantage_ratio", "ratio", "watch", basis="completed"), lambda t: 0.31 + 0.9 * _broken(t)),
        (signal_of("sandbox_credit_hours", "hours", "critical"), lambda t: 6.2),
        (signal_of("sandbox_credit_usd", "usd"), lambda t: 476.16),
        (signal_of("sandbox_cost_usd_per_hour", "usd/h"), lambda t: 76.8),
    )


# (resource, account, used, limit), as the account's own numbers are.
QUOTAS = (
    ("starting", "prime", 128.0, 128.0),
    ("concurrent", "prime", 960.0, 1000.0),
    ("cpu", "prime", 1240.0, 2000.0),
)


def of_quota(which: str, resource: str, target: str) -> SignalNow:
    return signal_of(f"sandbox_quota_{which}", "quota", resource=resource, target=target)


def level(value: float) -> Curve:
    return lambda t: value


def _broken(t: float) -> float:
    """Rises once the wall is reached."""
    return 0.02 + 0.09 / (1 + math.exp(-(t - NOW + 1200) / 120)) + 0.004 * noise(t, 8) if NOW - t > 5 else 0.11


def signal_of(name: str, unit: str, health: SignalState = "ok", **labels: str) -> SignalNow:
    """A signal whose labels may be called anything, ``state`` too."""
    made = signal(name, unit=unit, state=health)
    return structs.replace(made, name=series_name(name, labels), labels=labels, source="prime")


def reader(seconds: float = 3600.0) -> MemoryReader:
    """Three runs: at the wall, one that needs no sandbox, one that nobody tells of."""
    made = MemoryReader(NOW, INFOS)
    made.add_run(WALL, facts=fake.FACTS)
    for now, curve in _curves():
        made.append(WALL, now, fake.history(curve, 5.0, seconds))
    for cause, count in (("timeout", 21.0), ("image", 10.0), ("quota", 10.0), ("oom", 10.0)):
        made.append(WALL, signal_of("sandbox_failures_total", "sandboxes", cause=cause), [(NOW, count)])
    made.put_boxes(WALL, *boxes())
    made.set_targets(WALL, structs.replace(fake.target("prime", "sandbox", "prime_sandboxes"), run=WALL))
    made.add_run(MATH, facts={"has_sandbox": 0.0})
    why = "this task uses no sandbox"
    for name in ("sandboxes", "sandbox_oldest_pending_seconds", "sandbox_quota_used_ratio"):
        made.silence(MATH, signal(name, state="not_applicable", why=why))
    made.add_run(BARE)
    for name in ("sandboxes", "sandbox_oldest_pending_seconds", "sandbox_spinup_latency_seconds"):
        made.silence(BARE, signal(name, state="unknown", why=NOT_READ))
    return made
