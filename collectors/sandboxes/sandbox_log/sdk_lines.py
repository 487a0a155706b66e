"""Converts a log line of an SDK or framework about a sandbox to an event.

Texts by source: modal 1.6.4 (sandbox/_common.py `_format_sandbox_create_timing_log`, level DEBUG; _utils/grpc_utils.py,
the warning of a throttled call), verifiers 0.4.0 (v1/runtimes/{prime,modal,e2b,docker}.py), SWE-ReX 5c995c3
(deployment/{modal,docker,daytona}.py), ROCK 4889118bd (utils/concurrent_helper.py `StageTimer`), exception names of
e2b 2.63.0, daytona 0.226.1, prime-sandboxes 0.5.1. E2B, Daytona and Prime log nothing else about a creation.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["up", "building", "gone", "kept", "runtime", "stage", "throttled", "failed"]


@dataclass(frozen=True, slots=True)
class SandboxLine:
    """One event.

    Attributes:
        kind: ``up`` it is ready; ``building`` its image is being built; ``gone`` it is being ended; ``kept`` ending it
            failed; ``runtime`` the server inside started; ``stage`` a stage of the start took `seconds`; ``throttled``
            a call was throttled; ``failed`` a creation failed.
        seconds: duration in the line, if any.
        why: message of a failure.
    """

    kind: Kind
    provider: str = ""
    id: str = ""
    seconds: float | None = None
    image: str = ""
    stage: str = ""
    why: str = ""


# Lengths are bounded, because a log may contain anything. `seconds` of `up` is the client's wall time of create().
_ID = r"(?P<id>[\w.-]{4,100})"
_SECONDS = r"(?P<seconds>\d{1,7}\.\d{1,6})"
_IMAGE = r"(?:\[[^\]]{1,300}\] )?"
_SDK_ERRORS = (
    "ResourceExhaustedError|PaymentRequiredError|SandboxNotRunningError|SandboxImagePullError|SandboxOOMError"
    "|RateLimitException|ServiceBusyException|DaytonaRateLimitError|DaytonaQueueTimeoutError|DaytonaForbiddenError"
    "|DaytonaSpotEvictedError"
)
_TABLE: tuple[tuple[Kind, str, str], ...] = (
    ("up", "modal", rf"\bSandbox {_ID} created in {_SECONDS}s \(create rpc:"),
    ("up", "modal", rf"\bSandbox \({_ID}\) (?P<stage>created) in {_SECONDS}s"),  # SWE-ReX's own, of its Modal sandbox
    ("up", "", rf"\b(?P<provider>prime|modal|e2b): sandbox {_ID} up \(image=(?P<image>[^,)]{{0,300}})"),
    ("up", "daytona", rf"\bCreated Daytona sandbox with ID: {_ID}"),
    ("building", "prime", rf"\bprime: image (?P<image>\S{{1,300}}) isn't cached .{{1,60}}\(sandbox {_ID} waits"),
    ("gone", "modal", rf"\bTerminating sandbox {_ID}\.\.\."),
    ("gone", "daytona", rf"\bRemoving Daytona sandbox with ID: {_ID}"),
    ("kept", "", rf"\b(?P<provider>prime|modal|e2b): failed to (?:delete|terminate|kill) sandbox {_ID}:? (?P<why>.+)"),
    ("runtime", "swerex", rf"\bRuntime started in {_SECONDS}s"),
    ("failed", "swerex", r"\b(?P<why>Runtime did not start within timeout)"),
    (
        "stage",
        "rock",
        rf"\[startup_timing\] \[{_ID}\] (?:\[[^\]]{{1,300}}\] )?(?P<stage>[\w ]{{1,40}}) took {_SECONDS} s",
    ),
    # The third line of Modal's warning; the call and the first eight digits of its key.
    ("throttled", "modal", r"^for \w{1,60} \([0-9a-f-]{8}\)\. Retrying\.\.\."),
    ("failed", "", r"\b(?P<provider>prime|modal|e2b) sandbox provisioning failed: (?P<why>.+)"),
    ("failed", "", r"\bSandboxError: (?P<why>(?P<provider>docker|podman|apptainer) (?:run|instance start) failed.*)"),
    ("failed", "", rf"^(?:[A-Za-z_][\w.]{{0,80}}\.)?(?P<why>(?:{_SDK_ERRORS}): .+)"),
)
_PATTERNS = tuple((kind, provider, re.compile(pattern)) for kind, provider, pattern in _TABLE)
# Prefilter: each pattern above requires one of these words, and most lines have none.
_HINT = re.compile(r"[Ss]andbox|Retrying|startup_timing|Runtime |Error: |Exception: ")


def event_of(line: str) -> SandboxLine | None:
    """The event in a line without colours, time and worker prefix; None if there is none."""
    if not _HINT.search(line):
        return None
    for kind, provider, pattern in _PATTERNS:
        match = pattern.search(line)
        if match:
            named = {name: text for name, text in match.groupdict().items() if text is not None}
            seconds = float(named.pop("seconds")) if "seconds" in named else None
            return SandboxLine(kind, seconds=seconds, **{"provider": provider, **named})
    return None
