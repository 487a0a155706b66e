"""Where the configuration file is looked for when no option names one."""

from collections.abc import Mapping
from pathlib import Path

from server.config.errors import ConfigError

FILE = "rollscope.toml"
# Where a package or an image puts the configuration of a whole machine.
SYSTEM = Path("/etc/rollscope") / FILE


def config_path(env: Mapping[str, str]) -> Path | None:
    """The first that exists: ./rollscope.toml, the user's file, the machine's file; None: there is none.

    ROLLSCOPE_CONFIG overrides them and may name a missing file, which is then an error. If it is set but empty, no
    file is used.

    Raises:
        ConfigError: a folder cannot be searched, so that it is unknown whether its file exists.
    """
    if "ROLLSCOPE_CONFIG" in env:
        return Path(env["ROLLSCOPE_CONFIG"]) if env["ROLLSCOPE_CONFIG"] else None
    user = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "rollscope" / FILE
    return next((path for path in (Path(FILE), user, SYSTEM) if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigError(
            [
                f"{path}: cannot look for the configuration: {error.strerror}; name a file with -c FILE, or set "
                "ROLLSCOPE_CONFIG to nothing to use none"
            ]
        ) from None
