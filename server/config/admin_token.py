"""The admin token, which a server on a loopback address requires for changes: delete, silence, start a preflight.

It is made at the first start and kept in the state folder, readable by its owner only, so that other accounts of a
shared host can read but not change anything. The command line does not send it by itself, because the server on a port
of such a host may belong to another account.
"""

import os
import secrets
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from server.config.settings import TOKEN_LENGTH, state_dir
from server.lib.secret import Secret

FILE = "admin-token"


def _stored(env: Mapping[str, str]) -> Secret | None:
    """The token in the state folder; None if there is none, or if this account may not read it."""
    try:
        text = (state_dir(env) / FILE).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Secret(text) if len(text) >= TOKEN_LENGTH else None


def made(env: Mapping[str, str]) -> Secret:
    """The token, which is made if there is none. In a folder that cannot be written it ends with the process."""
    return _stored(env) or _new(state_dir(env) / FILE)


@lru_cache(maxsize=8)  # the same one for the server and for the address that is printed
def _new(path: Path) -> Secret:
    token = secrets.token_urlsafe(24)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written under another name first: a process that reads it meanwhile must not see half of it.
        part = path.with_name(f"{FILE}.{os.getpid()}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(token + "\n")
        part.replace(path)
    except OSError:
        pass
    return Secret(token)
