"""The preflight checks: pure functions of the plan and of the readings. No I/O, no clock.

A check is "ok" only when every number it needs was read or stated; what could not be read is "unknown". A check that
is not of this run is "not_applicable".
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from collectors.model import ErrorKind
from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.preflight import quota, sandboxes
from server.preflight.model import Check, Inputs, PreflightPlan, ReadTarget, Status, number, span, worst
from server.preflight.probe import probe
from server.targets.model import RunSettings

# Seconds. Clocks that differ by a minute break signed requests.
SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 5.0, 60.0
NO_TARGET = "no sandbox target is configured"
ADD_TARGET = "add a [[run.NAME.target]] for the sandbox provider, or facts.has_sandbox = 0 for a run without sandboxes"
# Errors that a provider only returns to a valid key.
KNOWN_KEY: tuple[ErrorKind, ...] = ("credit", "quota", "throttled")


def judge(inputs: Inputs) -> list[Check]:
    """Runs every check, sandboxes first. Checks of sandboxes do not apply to a run without sandboxes."""
    checks = [_sandbox_check(inputs, check) for check in (credentials, reachability, *quota.CHECKS, *sandboxes.CHECKS)]
    return [*checks, engines(inputs), run_directory(inputs), clock_skew(inputs)]


def _sandbox_check(inputs: Inputs, check: Callable[[Inputs], Check]) -> Check:
    name = NAMES[check]
    accounts = [account for account in inputs.seen if account.target.actor == "sandbox"]
    if inputs.needs_none():
        more = f", though {len(accounts)} sandbox targets are configured" if accounts else ""
        return Check(name, "not_applicable", f"this run needs no sandbox{more}")
    return check(inputs) if accounts else Check(name, "unknown", NO_TARGET, ADD_TARGET)


def outcome(checks: Sequence[Check]) -> Status:
    """Returns the worst status; only "fail" stops a launch."""
    return worst(check.status for check in checks)


# ---- accounts


def credentials(inputs: Inputs) -> Check:
    """Checks that every provider accepts the key and that no account is suspended."""
    answers = [(account, *_key(account)) for account in _sandbox_targets(inputs)]
    return _of_targets(
        "credentials", answers, "accounts accept their key",
        "check the key and its scopes (key_env, key_file or the provider's own variable); for a suspended account see "
        "its billing page",
    )  # fmt: skip


def _key(account: ReadTarget) -> tuple[Status, str]:
    suspended = account.gauge("sandbox_account_suspended")
    if suspended is not None and suspended > 0:
        return "fail", "the account is suspended"
    if account.error is None:
        return "ok", "accepted"
    if account.error.kind == "auth":
        return "fail", str(account.error)
    if account.error.kind in KNOWN_KEY:
        return "ok", f"accepted, but {account.error}"
    return "unknown", str(account.error)


def reachability(inputs: Inputs) -> Check:
    """Checks that every provider returns what its collector reads."""
    answers = [(account, *_answer(account)) for account in _sandbox_targets(inputs)]
    return _of_targets(
        "reachability", answers, "accounts answer",
        "check the URL, the network and the provider's status page; if it throttles, find the client that sends too "
        "many requests",
    )  # fmt: skip


def _answer(account: ReadTarget) -> tuple[Status, str]:
    if account.error is None:
        unseen = account.unseen().removeprefix(f"{account.name}: ")
        answered = f"answered in {number(account.seconds)} s"
        return ("warn", f"{answered}, incompletely: {unseen}") if unseen else ("ok", answered)
    if account.error.kind == "throttled":
        wait = f"; retry after {span(account.error.retry_after)}" if account.error.retry_after else ""
        return "warn", f"{account.error}{wait}"
    # A refused key does not show whether the rest works.
    return ("unknown" if account.error.kind in ("auth", "credit", "quota") else "fail"), str(account.error)


def _sandbox_targets(inputs: Inputs) -> list[ReadTarget]:
    return [target for target in inputs.seen if target.target.actor == "sandbox"]


def _of_targets(name: str, answers: Sequence[tuple[ReadTarget, Status, str]], what: str, fix: str) -> Check:
    status = worst(answer for _, answer, _ in answers)
    good = sum(answer == "ok" for _, answer, _ in answers)
    return Check(
        name, status, f"{good} of {len(answers)} {what}", "" if status == "ok" else fix,
        value=float(good), limit=float(len(answers)), unit="targets",
        details=tuple(f"{target.name}: {text}" for target, _, text in answers),
    )  # fmt: skip


# ---- engines


def engines(inputs: Inputs) -> Check:
    """Checks that all engines answer with the same version; versions differ in log-probabilities."""
    # Files report rollouts and are no engines.
    targets = [engine for engine in inputs.seen if engine.target.actor == "generator" and not engine.target.path]
    if not targets:
        return Check("engines", "unknown", "no engine is configured", "add a [[run.NAME.target]] for each engine")
    up = [engine for engine in targets if engine.error is None]
    versions = sorted({engine.version for engine in up if engine.version})
    silent = [engine for engine in up if not engine.version]
    status, fix = _engines_status(inputs, len(targets) - len(up), versions, len(silent))
    reported = ", ".join(versions) or "not reported"
    return Check(
        "engines", status, f"{len(up)} of {len(targets)} engines answer; version {reported}", fix,
        value=float(len(up)), limit=float(len(targets)), unit="engines",
        details=tuple(
            f"{engine.name}: {engine.error or engine.version or 'does not report its version'}" for engine in targets
        ),
    )  # fmt: skip


def _engines_status(inputs: Inputs, down: int, versions: Sequence[str], silent: int) -> tuple[Status, str]:
    if len(versions) > 1:
        return "fail", "run one version everywhere: restart the engines that lag behind"
    if down and inputs.plan.engines_later:
        return "unknown", "the run starts its engines; check again once they are up"
    if down:
        return (
            "fail",
            "start the engines, or set engines_later = true under [run.NAME.preflight] if the run starts them",
        )
    if silent:
        return "unknown", "query the engines' own /version (older servers and other engines report none)"
    return "ok", ""


# ---- run directory


def run_directory(inputs: Inputs) -> Check:
    """Checks that the trainer's files are readable; a missing file is normal before the first start."""
    targets = [target for target in inputs.seen if target.path is not None]
    if not targets:
        fix = "add the directory the trainer will write: [[run.NAME.target]] path = ..."
        return Check("run_directory", "unknown", "no run directory is configured", fix)
    answers = [(target, *_path(target)) for target in targets]
    fix = "check path and permissions of the user Rollscope runs as; a trainer creates its directory when it starts"
    return _of_targets("run_directory", answers, "run directories can be read", fix)


def _path(target: ReadTarget) -> tuple[Status, str]:
    assert target.path is not None
    if target.path.why:
        return "unknown", target.path.why
    if not target.path.exists:
        return "warn", "does not exist yet"
    if not target.path.readable:
        return "fail", "no permission to read it"
    if target.error is not None:
        # An empty directory is one that a run has not begun in.
        return ("warn" if target.error.kind in ("not_a_run", "empty", "missing") else "fail"), str(target.error)
    return "ok", "read"


# ---- clocks


def clock_skew(inputs: Inputs) -> Check:
    """The largest difference between our clock and those of providers, engines and the trainer's files.

    HTTP shows both directions to a second. A file's time only shows a clock that is ahead: one in the past may simply
    be old.
    """
    skews = {item.name: item.skew for item in inputs.seen if item.skew is not None}
    for item in inputs.seen:
        times = [at for at in (item.newest, item.path.newest if item.path else None) if at is not None]
        ahead = max(times, default=inputs.now) - inputs.now
        if ahead > SKEW_WARN_SECONDS and item.path is not None:
            skews[item.name] = max(ahead, skews.get(item.name, 0.0))
    if not skews:
        return Check(
            "clock_skew", "unknown", "no target reported the time", "compare by hand: `chronyc tracking`, `date -u`"
        )
    name = max(skews, key=lambda item: abs(skews[item]))
    size = abs(skews[name])
    status: Status = "fail" if size > SKEW_FAIL_SECONDS else "warn" if size > SKEW_WARN_SECONDS else "ok"
    undated = [
        item.name for item in inputs.seen if item.reading is not None and item.target.url and item.name not in skews
    ]
    if status == "ok" and undated:
        details = tuple(f"{item}: does not report the time" for item in undated)
        fix = "compare by hand: `date -u` there and here"
        text = f"{len(skews)} clocks agree with this machine's, {len(undated)} do not report the time"
        return Check("clock_skew", "unknown", text, fix, size, SKEW_WARN_SECONDS, "seconds", details)
    side = "ahead of" if skews[name] > 0 else "behind"
    text = (
        f"{name}: its clock is {span(round(size, 1))} {side} this machine's"
        if size
        else f"{len(skews)} clocks agree with this machine's"
    )
    fix = "" if status == "ok" else "run NTP on both machines (`chronyc tracking`); correct the one that is off"
    details = tuple(f"{item}: {number(round(skew, 1))} s" for item, skew in skews.items())
    return Check("clock_skew", status, text, fix, size, SKEW_WARN_SECONDS, "seconds", details)


NAMES: dict[Callable[[Inputs], Check], str] = {
    credentials: "credentials",
    reachability: "reachability",
    quota.quota: "quota",
    quota.starting: "starting_limit",
    quota.create_rate: "create_rate",
    sandboxes.credit: "credit",
    sandboxes.dangling: "dangling",
    sandboxes.sandbox_ttl: "sandbox_ttl",
    sandboxes.images: "images",
}


# ---- report
# The preflight report as plain data for the command line and the page: the plan and the result of every check.


def chosen(runs: Sequence[tuple[RunSettings, PreflightPlan]], names: Sequence[str]) -> list[str]:
    """The names to report on: all of them unless some were named.

    Raises:
        ConfigError: a name that is not configured.
    """
    configured = [run.name for run, _ in runs]
    strange = [name for name in names if name not in configured]
    if strange:
        names = ", ".join(configured) or "none; name them in the configuration (-c FILE)"
        raise ConfigError([f"preflight: no run is named {name!r}; configured: {names}" for name in strange])
    return [name for name in configured if not names or name in names]


def run(
    runs: Sequence[tuple[RunSettings, PreflightPlan]],
    over: PreflightPlan,
    clock: Clock,
    names: Sequence[str] = (),
    active_names: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the report as JSON data. Other runs are read too, because their sandboxes do not dangle.

    Args:
        runs: everything configured, each with its file's plan.
        over: the command line's plan.
        living: names of runs known to go on, these or others: what belongs to them is in use.

    Raises:
        ConfigError: a run that is not configured.
    """
    selected = chosen(runs, names)
    # Without a configuration nothing can be read, which is an answer too.
    planned = [(one, over.over(file_plan)) for one, file_plan in runs] or [
        (RunSettings("(no run is configured)"), over)
    ]
    inputs = [_alive(one, frozenset(active_names)) for one in probe(planned, clock)]
    results = [(one, judge(one)) for one in inputs if not selected or one.run in selected]
    reports = [
        {
            "run": one.run,
            "outcome": outcome(checks),
            "plan": finite(asdict(one.plan)),
            "checks": [finite(asdict(check)) for check in checks],
        }
        for one, checks in results
    ]
    return {"outcome": worst(outcome(checks) for _, checks in results), "now": clock.now(), "runs": reports}


def _alive(inputs_of_run: Inputs, active_names: frozenset[str]) -> Inputs:
    running = inputs_of_run.running or not inputs_of_run.keys.isdisjoint(active_names)
    return replace(inputs_of_run, running=running, alive=(inputs_of_run.alive | active_names) - inputs_of_run.keys)


def finite(value: Any) -> Any:
    """Replaces infinity, which JSON does not have, by "unlimited" as in the configuration."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return "unlimited" if isinstance(value, float) and not math.isfinite(value) else value
