"""Pre-flights by hand: one that will not fit, one of a math run, one that was never begun."""

from msgspec import structs

from server.query.preflight import CheckInfo, PreflightInfo
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader

NOW = wall.NOW
NEW = "not-checked"
SANDBOX = ("credentials", "reachability", "quota", "starting_limit", "create_rate", "credit", "dangling", "sandbox_ttl",
           "images")  # fmt: skip
IDS = tuple(f"sbx-{9000 + n:05d}" for n in range(20))
CHECKS = (
    CheckInfo("credentials", "ok", "1 of 1 accounts accept their key", value=1.0, limit=1.0, unit="targets"),
    CheckInfo("reachability", "ok", "1 of 1 accounts answer", value=1.0, limit=1.0, unit="targets"),
    CheckInfo("quota", "warn", "960 of 996 sandboxes that are left of 1000 (96%)", "ask prime for a higher limit, or "
              "lower the concurrency", 960.0, 996.0, "sandboxes", ("prime: limit 1000, used 4",)),
    CheckInfo("starting_limit", "fail", "4 per second x 38 s p95 spin-up = 152 starting at once, limit 128",
              "lower the create rate to 2.7 per second, or ask prime for a higher starting limit", 152.0, 128.0,
              "sandboxes"),
    CheckInfo("create_rate", "unknown", "prime tells no limit of creations", "state limits.creates_per_second", 4.0,
              None, "sandboxes/s"),
    CheckInfo("credit", "warn", "476 USD; 24 h need 2074 USD at 0.09 USD per sandbox-hour", "top up 1598 USD", 476.16,
              2073.6, "USD"),
    CheckInfo("dangling", "warn", "23 sandboxes live without a run", "remove them", 23.0, 10.0, "sandboxes",
              ("qwen3-8b-swe-0412: 21", "no name: 2"), IDS, tuple(f"prime sandbox delete {one}" for one in IDS)),
    CheckInfo("sandbox_ttl", "ok", "a sandbox is live for 2 h, a rollout at most 30 min", value=7200.0, limit=1980.0,
              unit="seconds"),
    CheckInfo("images", "unknown", "no image is planned", "name them: images = [...]"),
    CheckInfo("engines", "ok", "3 of 3 engines answer; version 0.11.0", value=3.0, limit=3.0, unit="engines"),
    CheckInfo("run_directory", "ok", "1 of 1 directories can be read"),
    CheckInfo("clock_skew", "ok", "5 clocks agree with this machine's", value=0.4, limit=5.0, unit="seconds"),
)  # fmt: skip
PLAN = {
    "concurrency": 960, "create_rate": 4.0, "rollout_deadline": 1800.0, "run_length": 86400.0, "images": [],
    "limits": {"starting": 128.0}, "price": 0.09, "sandbox_ttl": "unlimited", "spinup": None, "size": {},
    "known_runs": ["alice-*"], "max_dangling": 10, "min_credit": 10.0, "engines_later": False,
}  # fmt: skip
EMPTY = {key: value if key in ("max_dangling", "min_credit", "engines_later") else None for key, value in PLAN.items()}
FOUND = PreflightInfo("done", NOW - 65, NOW - 60, None, "", PLAN, "fail", CHECKS)


def of_math() -> PreflightInfo:
    """Nothing of sandboxes applies; engines and clocks do."""
    none = tuple(CheckInfo(name, "not_applicable", "this run needs no sandbox") for name in SANDBOX)
    return structs.replace(FOUND, plan=EMPTY, outcome="ok", checks=(*none, *CHECKS[-3:]))


def reader() -> MemoryReader:
    """The runs of the Sandboxes page, and one that is configured and was never looked at."""
    made = wall.reader(600.0)
    made.add_run(NEW)
    made.preflights = {
        wall.WALL: FOUND,
        wall.MATH: of_math(),
        NEW: PreflightInfo("never", plan=EMPTY),
    }
    return made
