"""Where the configuration file is looked for when no option names one."""

from collections.abc import Mapping
from pathlib import Path

FILE = "rollscope.toml"
# Where a package or an image puts the configuration of a whole machine.
SYSTEM = Path("/etc/rollscope") / FILE


def config_path(env: Mapping[str, str]) -> Path | None:
    """The first that exists: ./rollscope.toml, the user's file, the machine's file; None: there is none.

    ROLLSCOPE_CONFIG overrides them and may name a missing file, which is then an error. If it is set but empty, no
    file is used.
    """
    if "ROLLSCOPE_CONFIG" in env:
        return Path(env["ROLLSCOPE_CONFIG"]) if env["ROLLSCOPE_CONFIG"] else None
    user = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "rollscope" / FILE
    return next((path for path in (Path(FILE), user, SYSTEM) if path.is_file()), None)
