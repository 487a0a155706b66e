"""`rollscope init [FILE]`: writes a commented configuration file to start from."""

from pathlib import Path

import click

from server.cli import OK
from server.cli.program import Command
from server.config.settings import FILE
from server.lib.errors import ConfigError

# A line with "#" and no space after it is a setting; the user removes the "#". A test reads all of them.
STARTER = """\
# Configuration of Rollscope. Every key with its default: docs/reference/configuration.md.
# Lines with # and no space after it are settings: remove the # and edit the value.
# Rollscope reads ./rollscope.toml, ~/.config/rollscope/rollscope.toml or /etc/rollscope/rollscope.toml, or the file
# named by -c FILE or ROLLSCOPE_CONFIG. Check the file with: rollscope check

[server]
# Any address beyond loopback needs a token (ROLLSCOPE_TOKEN or token_file).
#host = "127.0.0.1"
#port = 8050
#token_file = "/etc/rollscope/token"

[store]
# SQLite for one machine; PostgreSQL if several servers share the data.
#url = "sqlite:////var/lib/rollscope/rollscope.db"

# One table for each run. The name appears in the dashboard and in alerts.
#[run.my-run]
# Facts that you state override those that the collectors find. mode: sync_colocated, sync_split, one_step, async or
# async_colocated.
#facts = { mode = "async", group_size = 8 }

# What to read: an engine's or router's URL, a run directory, a log file. The collector is detected.
#[[run.my-run.target]]
#path = "/data/outputs/my-run"
#[[run.my-run.target]]
#url = "http://127.0.0.1:8000"

# Engines that come and go: a list of targets in Prometheus' file_sd format.
#[[run.my-run.discover]]
#file_sd = "/etc/prometheus/engines.json"

# GPUs and prices, for the cost of idle time.
#[run.my-run.cost]
#gpu = "H200"
#trainer_gpus = 8
#generator_gpus = 24

# The default alert rules are on without configuration; a receiver gets their notifications. Kinds: webhook, slack,
# discord, pagerduty, alertmanager, apprise. Try it with: rollscope alerts send-test oncall
#[[alerts.receiver]]
#name = "oncall"
#kind = "slack"
#url_env = "SLACK_WEBHOOK_URL"
"""


@click.command(cls=Command)
@click.argument(
    "file", type=click.Path(path_type=Path), default=Path(FILE), metavar="[FILE]", help=f"default: ./{FILE}"
)
def command(file: Path) -> int:
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(STARTER)
    except FileExistsError:
        raise ConfigError([f"{file} already exists; name another file or remove it"]) from None
    except OSError as error:
        raise ConfigError([f"{file}: cannot be written: {error.strerror or type(error).__name__}"]) from None
    print(f"{file} is written; edit it, then run: rollscope check -c {file}")
    return OK
