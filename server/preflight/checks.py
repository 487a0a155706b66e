"""The preflight checks: pure functions of the plan and of the readings. No I/O, no clock.

A check is "ok" only when every number it needs was read or stated; what could not be read is "unknown". A check that
is not of this run is "not_applicable".
"""

from collections.abc import Callable, Sequence

from collectors.model import ErrorKind
from server.preflight import quota, sandboxes
from server.preflight.model import Check, Inputs, ReadTarget, Status, number, span, worst

# Seconds. Clocks that differ by a minute break signed requests.
SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 5.0, 60.0
NO_TARGET = "no sandbox target is configured"
ADD_TARGET = "add a [[run.NAME.target]] for the sandbox provider, or facts.has_sandbox = 0 for a run without sandboxes"
# Errors that a provider only returns to a valid key.
KNOWN_KEY: tuple[ErrorKind, ...] = ("credit", "quota", "throttled")


def judge(inputs: Inputs) -> list[Check]:
    """Runs every check, sandboxes first. Checks of sandboxes do not apply to a run without sandboxes."""
    found = [_sandbox_check(inputs, check) for check in (credentials, reachability, *quota.CHECKS, *sandboxes.CHECKS)]
    return [*found, engines(inputs), run_directory(inputs), clock_skew(inputs)]


def _sandbox_check(inputs: Inputs, check: Callable[[Inputs], Check]) -> Check:
    name = NAMES[check]
    accounts = [one for one in inputs.seen if one.target.actor == "sandbox"]
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
    answers = [(one, *_key(one)) for one in _sandbox_targets(inputs)]
    return _of_targets(
        "credentials", answers, "accounts accept their key",
        "check the key and its scopes (key_env, key_file or the provider's own variable); for a suspended account see "
        "its billing page",
    )  # fmt: skip


def _key(one: ReadTarget) -> tuple[Status, str]:
    suspended = one.gauge("sandbox_account_suspended")
    if suspended is not None and suspended > 0:
        return "fail", "the account is suspended"
    if one.error is None:
        return "ok", "accepted"
    if one.error.kind == "auth":
        return "fail", str(one.error)
    if one.error.kind in KNOWN_KEY:
        return "ok", f"accepted, but {one.error}"
    return "unknown", str(one.error)


def reachability(inputs: Inputs) -> Check:
    """Checks that every provider returns what its collector reads."""
    answers = [(one, *_answer(one)) for one in _sandbox_targets(inputs)]
    return _of_targets(
        "reachability", answers, "accounts answer",
        "check the URL, the network and the provider's status page; if it throttles, find the client that sends too "
        "many requests",
    )  # fmt: skip


def _answer(one: ReadTarget) -> tuple[Status, str]:
    if one.error is None:
        unseen = one.unseen().removeprefix(f"{one.name}: ")
        answered = f"answered in {number(one.seconds)} s"
        return ("warn", f"{answered}, incompletely: {unseen}") if unseen else ("ok", answered)
    if one.error.kind == "throttled":
        wait = f"; retry after {span(one.error.retry_after)}" if one.error.retry_after else ""
        return "warn", f"{one.error}{wait}"
    # A refused key does not show whether the rest works.
    return ("unknown" if one.error.kind in ("auth", "credit", "quota") else "fail"), str(one.error)


def _sandbox_targets(inputs: Inputs) -> list[ReadTarget]:
    return [one for one in inputs.seen if one.target.actor == "sandbox"]


def _of_targets(name: str, answers: Sequence[tuple[ReadTarget, Status, str]], what: str, fix: str) -> Check:
    status = worst(answer for _, answer, _ in answers)
    good = sum(answer == "ok" for _, answer, _ in answers)
    return Check(
        name, status, f"{good} of {len(answers)} {what}", "" if status == "ok" else fix,
        value=float(good), limit=float(len(answers)), unit="targets",
        details=tuple(f"{one.name}: {words}" for one, _, words in answers),
    )  # fmt: skip


# ---- engines


def engines(inputs: Inputs) -> Check:
    """Checks that all engines answer with the same version; versions differ in log-probabilities."""
    # Files report rollouts and are no engines.
    found = [one for one in inputs.seen if one.target.actor == "generator" and not one.target.path]
    if not found:
        return Check("engines", "unknown", "no engine is configured", "add a [[run.NAME.target]] for each engine")
    up = [one for one in found if one.error is None]
    versions = sorted({one.version for one in up if one.version})
    silent = [one for one in up if not one.version]
    status, fix = _engines_status(inputs, len(found) - len(up), versions, len(silent))
    reported = ", ".join(versions) or "not reported"
    return Check(
        "engines", status, f"{len(up)} of {len(found)} engines answer; version {reported}", fix,
        value=float(len(up)), limit=float(len(found)), unit="engines",
        details=tuple(f"{one.name}: {one.error or one.version or 'does not report its version'}" for one in found),
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
    found = [one for one in inputs.seen if one.path is not None]
    if not found:
        fix = "add the directory the trainer will write: [[run.NAME.target]] path = ..."
        return Check("run_directory", "unknown", "no run directory is configured", fix)
    answers = [(one, *_path(one)) for one in found]
    fix = "check path and permissions of the user Rollscope runs as; a trainer creates its directory when it starts"
    return _of_targets("run_directory", answers, "run directories can be read", fix)


def _path(one: ReadTarget) -> tuple[Status, str]:
    assert one.path is not None
    if one.path.why:
        return "unknown", one.path.why
    if not one.path.exists:
        return "warn", "does not exist yet"
    if not one.path.readable:
        return "fail", "no permission to read it"
    if one.error is not None:
        # An empty directory is one that a run has not begun in.
        return ("warn" if one.error.kind in ("not_a_run", "empty", "missing") else "fail"), str(one.error)
    return "ok", "read"


# ---- clocks


def clock_skew(inputs: Inputs) -> Check:
    """The largest difference between our clock and those of providers, engines and the trainer's files.

    HTTP shows both directions to a second. A file's time only shows a clock that is ahead: one in the past may simply
    be old.
    """
    skews = {one.name: one.skew for one in inputs.seen if one.skew is not None}
    for one in inputs.seen:
        times = [at for at in (one.newest, one.path.newest if one.path else None) if at is not None]
        ahead = max(times, default=inputs.now) - inputs.now
        if ahead > SKEW_WARN_SECONDS and one.path is not None:
            skews[one.name] = max(ahead, skews.get(one.name, 0.0))
    if not skews:
        return Check(
            "clock_skew", "unknown", "no target reported the time", "compare by hand: `chronyc tracking`, `date -u`"
        )
    name = max(skews, key=lambda one: abs(skews[one]))
    size = abs(skews[name])
    status: Status = "fail" if size > SKEW_FAIL_SECONDS else "warn" if size > SKEW_WARN_SECONDS else "ok"
    undated = [one.name for one in inputs.seen if one.reading is not None and one.target.url and one.name not in skews]
    if status == "ok" and undated:
        details = tuple(f"{one}: does not report the time" for one in undated)
        fix = "compare by hand: `date -u` there and here"
        words = f"{len(skews)} clocks agree with this machine's, {len(undated)} do not report the time"
        return Check("clock_skew", "unknown", words, fix, size, SKEW_WARN_SECONDS, "seconds", details)
    side = "ahead of" if skews[name] > 0 else "behind"
    words = (
        f"{name}: its clock is {span(round(size, 1))} {side} this machine's"
        if size
        else f"{len(skews)} clocks agree with this machine's"
    )
    fix = "" if status == "ok" else "run NTP on both machines (`chronyc tracking`); correct the one that is off"
    details = tuple(f"{one}: {number(round(skew, 1))} s" for one, skew in skews.items())
    return Check("clock_skew", status, words, fix, size, SKEW_WARN_SECONDS, "seconds", details)


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
