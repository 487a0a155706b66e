"""Why a sandbox failed: providers' words -> canonical causes. First match wins; nothing matches: ``unknown``.

Sources: error texts quoted in users' threads and codes the SDKs branch on. Providers have no common codes, and most
have no codes at all.
"""

import re
from collections.abc import Iterator

from collectors.model import FailureCause

# In this order: an image that cannot be pulled often "timed out", and a queue that timed out had no capacity.
_WORDS: tuple[tuple[FailureCause, str], ...] = (
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
_CAUSES = tuple((cause, re.compile(words, re.IGNORECASE)) for cause, words in _WORDS)

# An HTTP status that a text begins with or names as one; any other number of three digits is a number.
_STATUS = re.compile(r"(?:^|http(?:/[\d.]+)?|status(?: code)?|error|code)[\s:=(]{0,3}([45]\d\d)\b", re.IGNORECASE)
_STATUSES: dict[str, FailureCause] = {
    "401": "auth",
    "402": "credit",
    "403": "auth",
    "408": "timeout",
    "429": "rate_limit",
}


def cause_of(*texts: str) -> FailureCause:
    """The cause the first telling text names; codes go before prose."""
    return next(_causes(texts), "unknown")


def _causes(texts: tuple[str, ...]) -> Iterator[FailureCause]:
    for text in texts:
        for cause, pattern in _CAUSES:
            if text and pattern.search(text):
                yield cause
        status = _STATUS.search(text or "")
        if status and (status[1] in _STATUSES or status[1].startswith("5")):
            yield _STATUSES.get(status[1], "internal")
