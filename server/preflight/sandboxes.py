"""Checks the sandboxes of the accounts: leftovers, credit, life times, images."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from collectors.model import Sandbox
from server.preflight.model import IDS_SHOWN, Check, Inputs, PreflightPlan, ReadTarget, Status, number, span, worst
from server.preflight.quota import room

# USD per hour. No provider sells the smallest sandbox (a fraction of a core) for less.
FLOOR_USD = 0.01
CREDIT_SPARE = 1.25
# Seconds, if no length is planned: too short to pass a plan, long enough to fail one.
ASSUMED_SECONDS = 24 * 3600.0
TTL_SPARE = 1.1
# Sandboxes on the user's own machines need no credit.
SELF_HOSTED = frozenset({"docker", "kubernetes", "agent_sandbox_metrics", "openenv", "swerex", "rock"})
# Targets that are one sandbox or server each, and listings of hosts on which other things live too.
ONE_EACH = frozenset({"openenv", "swerex"})
HOSTS = frozenset({"docker", "kubernetes"})

_PYTHON = "python -c {}"
# provider -> (collector's options, quoted id, quoted name) -> its own way to remove one.
REMOVALS: Mapping[str, Callable[[Mapping[str, str], str, str], str]] = {
    "prime": lambda _, key, __: f"prime sandbox delete {key}",
    "e2b": lambda _, key, __: f"e2b sandbox kill {key}",
    "daytona": lambda _, key, __: f"daytona delete {key}",
    "modal": lambda _, key, __: _call("import modal; modal.Sandbox.from_id({}).terminate()", key),
    "runloop": lambda _, key, __: _call("import runloop_api_client as r; r.Runloop().devboxes.shutdown({})", key),
    "docker": lambda _, key, __: f"docker rm --force {key}",
    "kubernetes": lambda options, _, name: _kubectl(options, name),
}


def _call(code: str, key: str) -> str:
    return _PYTHON.format(shlex.quote(code.format(repr(shlex.split(key)[0]))))


def _kubectl(options: Mapping[str, str], name: str) -> str:
    kind = "pod" if options.get("kind", "pods") == "pods" else "sandboxes.agents.x-k8s.io"
    namespace = options.get("namespace", "")
    return f"kubectl delete {kind} {name}" + (f" --namespace {shlex.quote(namespace)}" if namespace else "")


def removal(seen: ReadTarget, sandbox: Sandbox) -> str:
    """Returns the provider's command that removes a sandbox; "" if there is none.

    Ids and names are strangers' words that a user will paste into a shell: quoted, and refused where they would be
    taken for an option or cannot be printed.
    """
    make, identifiers = REMOVALS.get(sandbox.provider), (sandbox.id, sandbox.name)
    needed = sandbox.name if sandbox.provider == "kubernetes" else sandbox.id
    if make is None or not needed or needed.startswith("-") or not needed.isprintable():
        return ""
    return make(dict(seen.target.options), *(shlex.quote(identifier) for identifier in identifiers))


# ---- dangling


def dangling(inputs: Inputs) -> Check:
    """Checks for sandboxes that hold quota for an ended or unknown run."""
    accounts = [seen for seen in inputs.accounts() if seen.target.collector not in ONE_EACH]
    if inputs.accounts() and not accounts:
        return Check("dangling", "not_applicable", "each sandbox is a target of this run")
    loose = [
        (seen, sandbox) for seen in accounts for sandbox in seen.held_sandboxes() if not _is_in_use(inputs, sandbox)
    ]
    leftovers = [(seen, sandbox) for seen, sandbox in loose if not _is_unlabelled(seen, sandbox)]
    spared = len(loose) - len(leftovers)
    complete = bool(accounts) and all(seen.complete() for seen in accounts)
    status = _dangling_status(inputs, len(leftovers), complete)
    shown = leftovers[:IDS_SHOWN]
    left = [f"{spared} that name no run are ignored; to mark sandboxes, set the option label"] if spared else []
    return Check(
        "dangling", status, _dangling_words(inputs, [sandbox for _, sandbox in leftovers], complete),
        _dangling_fix(status),
        value=float(len(leftovers)) if leftovers or complete else None, limit=float(inputs.plan.max_dangling),
        unit="sandboxes", details=(*_owners(inputs, (sandbox for _, sandbox in leftovers)), *left, *inputs.unseen()),
        ids=tuple(sandbox.id for _, sandbox in shown),
        commands=tuple(command for seen, sandbox in shown if (command := removal(seen, sandbox))),
    )  # fmt: skip


def _is_in_use(inputs: Inputs, sandbox: Sandbox) -> bool:
    """Returns whether it belongs to an active run. Before a launch, this run's own sandboxes are leftovers."""
    if not sandbox.run_key:
        return False
    if sandbox.run_key in inputs.keys:
        return inputs.running
    return sandbox.run_key in inputs.alive or any(fnmatchcase(sandbox.run_key, name) for name in inputs.plan.known_runs)


def _is_unlabelled(seen: ReadTarget, sandbox: Sandbox) -> bool:
    """Returns whether it is a container of a shared host without a sandbox label; it may be a database."""
    options = dict(seen.target.options)
    return (
        not sandbox.run_key
        and sandbox.provider in HOSTS
        and not (options.get("label") or options.get("label_selector"))
    )


def _dangling_status(inputs: Inputs, count: int, complete: bool) -> Status:
    if count > inputs.plan.max_dangling or (count and _in_the_way(inputs)):
        return "fail"
    if count:
        return "warn"
    return "ok" if complete else "unknown"


def _in_the_way(inputs: Inputs) -> bool:
    """Returns whether dangling sandboxes leave too little quota for the plan."""
    free, planned = room(inputs, "concurrent").free, inputs.plan.concurrency
    return free is not None and planned is not None and free < planned


def _dangling_words(inputs: Inputs, leftovers: list[Sandbox], complete: bool) -> str:
    if not leftovers:
        return "no sandbox is live without a run" if complete else "not every account listed its sandboxes"
    seats = room(inputs, "concurrent")
    share = f" ({len(leftovers) / seats.limit:.0%} of the quota)" if seats.limit else ""
    least = "" if complete else "at least "
    times = [sandbox.requested_at or sandbox.started_at for sandbox in leftovers]
    ages = [inputs.now - at for at in times if at is not None and at <= inputs.now]
    age = f", the oldest for {span(max(ages))}" if ages else ""
    return f"{least}{len(leftovers)} sandboxes are live without an active run{share}{age}"


def _owners(inputs: Inputs, leftovers: Iterable[Sandbox]) -> Iterator[str]:
    counted = Counter(sandbox.run_key for sandbox in leftovers)
    for name, count in counted.most_common(10):
        # A run whose directory is not read may still be active: its sandboxes must not be removed by mistake.
        note = " (an earlier incarnation of this run: make sure that it no longer runs)" if name in inputs.keys else ""
        yield f"{count} of run {name!r}{note}" if name else f"{count} that name no run"


def _dangling_fix(status: Status) -> str:
    if status == "ok":
        return ""
    if status == "unknown":
        return "see the checks of credentials and reachability: every account must list its sandboxes"
    return (
        "remove them (Rollscope deletes nothing), or name the runs they belong to as known_runs = [...] under "
        "[run.NAME.preflight]"
    )


# ---- credit


def credit(inputs: Inputs) -> Check:
    """Compares the credit with (planned concurrency x price + current cost) x planned hours."""
    accounts = [account for account in inputs.accounts() if account.target.collector not in SELF_HOSTED]
    if inputs.accounts() and not accounts:
        return Check("credit", "not_applicable", "the sandboxes run on your own machines")
    broke = [
        f"{account.name}: {account.error}" for account in accounts if account.error and account.error.kind == "credit"
    ]
    reported = [balance for account in accounts if (balance := account.gauge("sandbox_credit_usd")) is not None]
    have = sum(reported) if reported else None
    status: Status
    if broke or any(balance <= 0 for balance in reported):
        status, words, need = "fail", "an account has no credit left", None
    elif have is None:
        status, words, need = "unknown", "no account reports its credit", None
    else:
        status, words, need = _enough(inputs, accounts, have)
        if len(reported) < len(accounts):
            # An account without a reported credit may pay for the rest, or may run out.
            status = "warn" if status == "fail" else "unknown"
        short = [
            shortage
            for account in accounts
            if len(accounts) > 1 and (shortage := _burns_out(inputs, account)) is not None
        ]
        if short:
            # No other account pays for the sandboxes of this one.
            status, words, (have, need) = "fail", "; ".join(text for text, _ in short), short[0][1]
    gaps = [f"{account.name}: {gap}" for account in accounts if account.reading for gap in account.reading.gaps]
    return Check(
        "credit", status, words, _credit_fix(status, have, price(inputs.plan, accounts), inputs.plan),
        value=have, limit=need, unit="USD", details=(*broke, *gaps),
    )  # fmt: skip


def price(plan: PreflightPlan, accounts: Iterable[ReadTarget]) -> float | None:
    """Returns USD per sandbox-hour: planned, else the highest recorded, else the mean of the current cost."""
    if plan.price is not None:
        return plan.price
    accounts = list(accounts)
    reported = [
        cost
        for seen in accounts
        for one in seen.held_sandboxes()
        if math.isfinite(cost := one.cost_usd_per_hour or 0.0)
    ]
    if max(reported, default=0.0) > 0:
        return max(reported)
    burn = sum(seen.gauge("sandbox_cost_usd_per_hour") or 0.0 for seen in accounts)
    alive = sum(len(seen.held_sandboxes()) for seen in accounts)
    return burn / alive if burn > 0 and alive else None


def _enough(inputs: Inputs, accounts: list[ReadTarget], have: float) -> tuple[Status, str, float | None]:
    """Returns (status, arithmetic, USD needed). An assumption may fail a plan but never pass one."""
    plan, alive = inputs.plan, sum(len(seen.held_sandboxes()) for seen in accounts)
    seconds, assumed = _length(plan)
    each = price(plan, accounts)
    rate = each if each is not None else FLOOR_USD
    burns = _burns(accounts, rate)
    need = ((plan.concurrency or 0) * rate + burns) * seconds / 3600.0
    text = (
        f"${number(have)} left; ({plan.concurrency or 0} planned x ${number(rate)}/h + ${number(burns)}/h of "
        f"{alive} alive) x {span(seconds)}{assumed} = ${number(need)}"
    )
    if each is None:
        text += f"; no price is available, so ${number(FLOOR_USD)}/h is assumed, which is below any price"
    if have < need:
        return "fail", text, need
    if each is None and have < plan.min_credit:
        return "fail", f"{text}, and ${number(plan.min_credit)} is the configured minimum", plan.min_credit
    if have < CREDIT_SPARE * need:
        return "warn", text, need
    is_planned = each is not None and plan.concurrency is not None and plan.run_length is not None
    return ("ok" if is_planned else "unknown"), text, need


def _length(plan: PreflightPlan) -> tuple[float, str]:
    return (plan.run_length, "") if plan.run_length is not None else (ASSUMED_SECONDS, " (assumed)")


def _burns(accounts: Iterable[ReadTarget], rate: float) -> float:
    """Returns the current cost in USD per hour: as reported, else of live sandboxes at ``rate``."""
    accounts = list(accounts)
    reported = sum(seen.gauge("sandbox_cost_usd_per_hour") or 0.0 for seen in accounts)
    return reported or rate * sum(len(seen.held_sandboxes()) for seen in accounts)


def _burns_out(inputs: Inputs, account: ReadTarget) -> tuple[str, tuple[float, float]] | None:
    """Returns (arithmetic, (USD left, USD needed)) of an account that its live sandboxes empty before the end."""
    have, each = account.gauge("sandbox_credit_usd"), price(inputs.plan, [account])
    seconds, assumed = _length(inputs.plan)
    burns = _burns([account], each if each is not None else FLOOR_USD)
    need = burns * seconds / 3600.0
    if have is None or have >= need:
        return None
    text = (
        f"{account.name}: ${number(have)} left; ${number(burns)}/h of "
        f"{len(account.held_sandboxes())} alive x {span(seconds)}{assumed} = ${number(need)}"
    )
    if each is None:
        text += f"; no price is available, so ${number(FLOOR_USD)}/h is assumed, which is below any price"
    return text, (have, need)


def _credit_fix(status: Status, have: float | None, each: float | None, plan: PreflightPlan) -> str:
    if status in ("warn", "fail"):
        return "add credit, remove dangling sandboxes, or plan fewer sandboxes or hours"
    if status == "ok":
        return ""
    if have is None:
        return "look at the provider's billing page; most providers report no balance"
    if each is None:
        return "set price (USD per sandbox-hour) under [run.NAME.preflight]"
    missing = [flag for flag, value in (("--concurrency", plan.concurrency), ("--run-length", plan.run_length))
               if value is None]  # fmt: skip
    return f"plan {' and '.join(missing)}" if missing else "every account must report its credit"


# ---- life time


def sandbox_ttl(inputs: Inputs) -> Check:
    """Checks that a sandbox outlives the longest rollout: configured life time, else the shortest of live sandboxes."""
    deadline, life_times = inputs.plan.rollout_deadline, _life_times(inputs)
    ttl = inputs.plan.sandbox_ttl if inputs.plan.sandbox_ttl is not None else min(life_times, default=None)
    source = "configured" if inputs.plan.sandbox_ttl is not None else f"the shortest of {len(life_times)} alive"
    if ttl is None or deadline is None:
        why = "no lifetime is known" if ttl is None else f"a sandbox is live for {span(ttl)} ({source})"
        plan = "" if deadline is not None else "; no rollout deadline is planned"
        fix = "set sandbox_ttl under [run.NAME.preflight]" if ttl is None else "give --rollout-deadline"
        return Check("sandbox_ttl", "unknown", why + plan, fix, value=_finite(ttl), limit=deadline, unit="seconds")
    status: Status = "fail" if ttl <= deadline else "warn" if ttl < TTL_SPARE * deadline else "ok"
    fix = f"create sandboxes with a lifetime of at least {span(TTL_SPARE * deadline)}" if status != "ok" else ""
    text = f"a sandbox is live for {span(ttl)} ({source}), a rollout at most {span(deadline)}"
    return Check("sandbox_ttl", status, text, fix, value=_finite(ttl), limit=deadline, unit="seconds")


def _life_times(inputs: Inputs) -> list[float]:
    """Prefers this run's own sandboxes, because others may have other life times."""
    own_sandboxes = [sandbox for sandbox in inputs.sandboxes() if sandbox.run_key in inputs.keys]
    return [
        sandbox.expires_at - begun
        for sandbox in (own_sandboxes or inputs.sandboxes())
        if sandbox.expires_at is not None
        and (begun := sandbox.ready_at or sandbox.started_at or sandbox.requested_at) is not None
        and sandbox.expires_at > begun
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- images


def images(inputs: Inputs) -> Check:
    """Checks that each planned image has been started before without a build or pull."""
    plan = inputs.plan.images
    if not plan:
        return Check("images", "unknown", "no image is planned", "name what sandboxes start from: --image NAME")
    answers = [(name, *_image(inputs, name)) for name in plan]
    status = worst(answer for _, answer, _ in answers)
    good = sum(answer == "ok" for _, answer, _ in answers)
    fixes: Mapping[Status, str] = {
        "fail": "correct the name, or the registry's credentials at the provider",
        "warn": "start one sandbox from each and wait until it is ready, so that the first batch does not build it",
        "unknown": "start one sandbox from each: nothing else shows whether the provider can start it",
    }
    return Check(
        "images", status, f"{good} of {len(plan)} images are available", fixes.get(status, ""),
        value=float(good), limit=float(len(plan)), unit="images",
        details=tuple(f"{name}: {text}" for name, _, text in answers),
    )  # fmt: skip


def _image(inputs: Inputs, name: str) -> tuple[Status, str]:
    matching = [
        sandbox for sandbox in inputs.sandboxes() if sandbox.image and canonical(sandbox.image) == canonical(name)
    ]
    started = [sandbox for sandbox in matching if sandbox.ready_at is not None or sandbox.state == "running"]
    failed = [sandbox for sandbox in matching if sandbox.state == "failed" and sandbox.cause == "image"]
    newest = max((_time(sandbox) for sandbox in started), default=-math.inf)
    if failed and max(_time(sandbox) for sandbox in failed) >= newest:
        return "fail", f"{len(failed)} sandboxes failed on it: {failed[-1].detail or 'image'}"
    if not started:
        building = any(sandbox.state == "building_image" for sandbox in matching)
        return ("warn", "is being built") if building else ("unknown", "no sandbox has started from it yet")
    if all(sandbox.image_cached is False for sandbox in started):
        return "warn", f"{len(started)} started, each after a build or pull"
    return "ok", f"{len(started)} started from it"


def _time(sandbox: Sandbox) -> float:
    return sandbox.requested_at or sandbox.started_at or sandbox.ended_at or 0.0


def canonical(image: str) -> str:
    """An image's full name, as Docker completes it: ``python`` is ``docker.io/library/python:latest``."""
    path, at, digest = image.strip().partition("@")
    first, slash, _ = path.partition("/")
    if not slash:
        path = f"docker.io/library/{path}"
    elif "." not in first and ":" not in first and first != "localhost":
        path = f"docker.io/{path}"
    if at:
        return f"{path}@{digest}"
    return path if ":" in path.rpartition("/")[2] else f"{path}:latest"


CHECKS: tuple[Callable[[Inputs], Check], ...] = (credit, dangling, sandbox_ttl, images)
