"""Why a container did not start or died: texts of container runtimes and schedulers -> canonical causes.

The words are those of containerd, Docker, runc and the Kubernetes scheduler. They are no contract, so the patterns
are loose and the words themselves always travel along as the detail. What none of them says is asked of
`collectors.sandbox_providers.causes`, which knows the providers' words.
"""

import re

from collectors.model import FailureCause
from collectors.sandbox_providers.causes import cause_of

# Before the providers' words. "OutOfmemory" is a node without room and no process killed; the scheduler counts "0/12
# nodes are available"; runc's "no such file" names a command that the image lacks.
_FIRST: tuple[tuple[FailureCause, str], ...] = (
    ("rate_limit", r"too ?many ?requests|rate[_ ]limit|creation rate"),
    (
        "capacity",
        r"outof(?:cpu|memory|pods|ephemeral)|nodes are available|node.?(?:lost|shutdown|affinity)"
        r"|terminated by node|disk.?pressure|unexpectedadmission|low on resource",
    ),
    ("image", r"\bpull(?:ing)?\b|no such file or directory|executable file not found|exec format error"),
)
# After them: a runtime's wrapping round whatever went wrong inside.
_LAST: tuple[tuple[FailureCause, str], ...] = (
    (
        "internal",
        r"runtime create|container_linux|runc|cannotrun|starterror|createcontainer|runcontainer|mount"
        r"|reconciler|daemon|network|connection (?:refused|reset)|driver",
    ),
)


def cause(*texts: str) -> FailureCause:
    """The cause the first telling text names: codes and reason words go before prose."""
    for said in texts:
        found = _match(_FIRST, said)
        found = found if found != "unknown" else cause_of(said)
        found = found if found != "unknown" else _match(_LAST, said)
        if found != "unknown":
            return found
    return "unknown"


def _match(table: tuple[tuple[FailureCause, str], ...], said: str) -> FailureCause:
    return next((found for found, words in table if re.search(words, said, re.IGNORECASE)), "unknown")
