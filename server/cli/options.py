"""Options that several commands share, and the settings that result from them."""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from server.cli.program import Choice, Program
from server.config.settings import Settings, config_path, load
from server.config.settings import check as check_settings
from server.lib.secret import Secret
from server.runtime import logs

log = logging.getLogger("rollscope")

SOURCE = (
    "a URL of an engine or router, a run directory or log, a list of targets (file_sd, prometheus.yml); "
    "COLLECTOR=SOURCE if the type cannot be detected"
)


@dataclass(frozen=True, slots=True)
class Options:
    """Values of the shared options; None: not given. ``config_is_default``: ``config`` is a default path."""

    program: Program
    config: Path | None = None
    config_is_default: bool = False
    store: str | None = None
    verbose: bool = False
    log_format: str = "text"
    host: str | None = None
    port: int | None = None
    role: str | None = None
    no_browser: bool = False


_CONFIG_FILE = click.Path(path_type=Path)
_CONFIG = click.option(
    "-c", "--config", type=_CONFIG_FILE, default=None, metavar="FILE",
    help="configuration (TOML); default: ROLLSCOPE_CONFIG, ./rollscope.toml, ~/.config/rollscope/rollscope.toml or "
    "/etc/rollscope/rollscope.toml",
)  # fmt: skip
_NAMED_CONFIG = click.option(
    "-c", "--config", type=_CONFIG_FILE, default=None, metavar="FILE",
    help="configuration (TOML); default: none, so that a demo sends no notification and uses no other store",
)  # fmt: skip
_COMMON = (
    click.option("--store", default=None, metavar="URL", help="URL of the store: sqlite:///FILE or postgresql://..."),
    click.option("-v", "--verbose", is_flag=True, help="verbose logging"),
    click.option(
        "--log-format", type=Choice(("text", "json")), default="text", envvar="ROLLSCOPE_LOG_FORMAT",
        help="format of the log on standard error (or ROLLSCOPE_LOG_FORMAT)",
    ),
)  # fmt: skip
_SERVING = (
    click.option(
        "--host", default=None, metavar="HOST", help="address to bind (default 127.0.0.1; any other needs a token)"
    ),
    click.option("--port", type=int, default=None, metavar="PORT", help="port (default 8050; 0 chooses one)"),
    click.option(
        "--role", type=Choice(("all", "collect", "web")), default=None, metavar="ROLE",
        help="role of this process; default: all",
    ),
    click.option("--no-browser", is_flag=True, help="do not open a browser"),
)  # fmt: skip
_NAMES = {field.name for field in fields(Options)} - {"program", "config_is_default"}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def common(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options that every command takes; the command receives them as `Options` in its first argument."""
    return _with((_CONFIG, *_COMMON), function)


def serving(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options of a command that serves, to those of `common`."""
    return _with((_CONFIG, *_COMMON, *_SERVING), function)


def simulating(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options of `serving`, but uses a configuration only if ``-c`` names it."""
    return _with((_NAMED_CONFIG, *_COMMON, *_SERVING), function, find_config=False)


def _with(
    decorators: Sequence[Decorator], function: Callable[..., int], *, find_config: bool = True
) -> Callable[..., int]:
    @functools.wraps(function)
    def run(**values: Any) -> int:
        shared = {name: values.pop(name) for name in _NAMES & values.keys()}
        options = Options(click.get_current_context().obj, **shared)
        logs.configure(logs.levels(options.verbose), options.log_format)
        if find_config and options.config is None and (path := config_path(os.environ)) is not None:
            options = replace(options, config=path, config_is_default=True)
        return function(options, **values)

    decorated: Callable[..., int] = run
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return decorated


def settings(options: Options) -> Settings:
    """Settings from file and environment, overridden by the command line.

    Raises:
        ConfigError: with every problem found.
    """
    loaded = load(options.config, os.environ)
    if options.config_is_default:
        log.info("configuration: %s", options.config)
    given: dict[str, Any] = {
        name: value for name in ("host", "port", "store", "role") if (value := getattr(options, name)) is not None
    }
    if "store" in given:
        given["store"] = Secret(given["store"])
    result = replace(loaded, **given)
    check_settings(result)
    return result
