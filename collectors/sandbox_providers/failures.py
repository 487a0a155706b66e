"""Maps texts of container runtimes and schedulers to canonical failure causes.

The texts are those of containerd, Docker, runc and the Kubernetes scheduler. They may change with any release, so the
patterns are loose, and callers pass the text on as the detail. Other texts are looked up in
`collectors.sandbox_providers.causes`.
"""

import re

from collectors.model import FailureCause
from collectors.sandbox_providers.causes import cause_of

# Checked before the providers' texts. "OutOfmemory" means a node without capacity, not a killed process. The scheduler
# writes "0/12 nodes are available". runc's "no such file" means that the image lacks the command.
_FIRST: tuple[tuple[FailureCause, str], ...] = (
    ("rate_limit", r"too ?many ?requests|rate[_ ]limit|creation rate"),
    (
        "capacity",
        r"outof(?:cpu|memory|pods|ephemeral)|nodes are available|node.?(?:lost|shutdown|affinity)"
        r"|terminated by node|disk.?pressure|unexpectedadmission|low on resource",
    ),
    ("image", r"\bpull(?:ing)?\b|no such file or directory|executable file not found|exec format error"),
)
# Checked after the providers' texts, because a runtime wraps the text of the original error.
_LAST: tuple[tuple[FailureCause, str], ...] = (
    (
        "internal",
        r"runtime create|container_linux|runc|cannotrun|starterror|createcontainer|runcontainer|mount"
        r"|reconciler|daemon|network|connection (?:refused|reset)|driver",
    ),
)


def cause(*texts: str) -> FailureCause:
    """The cause in the first text that has one. Pass codes and reasons before messages."""
    for text in texts:
        for result in (_match(_FIRST, text), cause_of(text), _match(_LAST, text)):
            if result != "unknown":
                return result
    return "unknown"


def _match(table: tuple[tuple[FailureCause, str], ...], text: str) -> FailureCause:
    return next((result for result, pattern in table if re.search(pattern, text, re.IGNORECASE)), "unknown")
