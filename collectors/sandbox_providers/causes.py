"""Maps providers' error texts and codes to canonical failure causes. The first match wins; without one: ``unknown``.

Sources: error texts quoted in users' threads, and codes that the SDKs handle. Providers have no common codes, and most
have no codes at all.
"""

import re
from collections.abc import Iterator

from collectors.model import FailureCause

# The order matters: the text of a failed image pull often contains "timed out", and so does that of missing capacity.
_PATTERNS: tuple[tuple[FailureCause, str], ...] = (
    ("oom", r"\boom\b|oom[_ ]?kill|out[_ ]of[_ ]memory|cannot allocate memory"),
    ("rate_limit", r"rate[_ ]?limit|too many requests|throttl"),
    ("credit", r"\bcredits?\b|payment|suspended|insufficient (?:funds|balance)"),
    ("quota", r"quota|limit (?:exceeded|reached)|maximum (?:allowed|number)|exceed\w* (?:the |your )?(?:\w+ )?limit"),
    (
        "image",
        r"image|manifest (?:unknown|for)|\bregistry\b|dockerfile|build[_ ](?:failed|error)|pull access denied|"
        r"snapshot .*(?:not found|failed|missing)",
    ),
    (
        "capacity",
        r"capacity|no (?:available |suitable |compatible |healthy )?(?:runner|node|host|worker|gpu)s?\b|"
        r"unschedulable|evict|preempt|out[_ ]of[_ ]disk|no space left|insufficient|resource[_ ]?exhausted",
    ),
    ("timeout", r"time[_ ]?out|timed[_ ]out|deadline"),
    ("auth", r"unauthori[sz]ed|forbidden|permission|access denied|credentials"),
    ("internal", r"internal|crash|panic|health[_ ]?check|execution[_ ]failed|node (?:lost|failure)|unexpected"),
)
_CAUSES = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _PATTERNS)

# An HTTP status at the start of a text or marked as one; other numbers of three digits do not count.
_STATUS = re.compile(r"(?:^|http(?:/[\d.]+)?|status(?: code)?|error|code)[\s:=(]{0,3}([45]\d\d)\b", re.IGNORECASE)
_STATUSES: dict[str, FailureCause] = {
    "401": "auth",
    "402": "credit",
    "403": "auth",
    "408": "timeout",
    "429": "rate_limit",
}


def cause_of(*texts: str) -> FailureCause:
    """The cause in the first text that has one. Pass codes before messages."""
    return next(_causes(texts), "unknown")


def _causes(texts: tuple[str, ...]) -> Iterator[FailureCause]:
    for text in texts:
        for cause, pattern in _CAUSES:
            if text and pattern.search(text):
                yield cause
        status = _STATUS.search(text or "")
        if status and (status[1] in _STATUSES or status[1].startswith("5")):
            yield _STATUSES.get(status[1], "internal")
