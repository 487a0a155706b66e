"""What the commands share: options, and the settings that come of them."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from server.config.settings import Settings, load
from server.config.settings import check as check_settings
from server.secret import Secret

SOURCE = (
    "a URL of an engine or router, a run directory or log, a list of targets (file_sd, prometheus.yml); "
    "COLLECTOR=SOURCE if the type cannot be detected"
)


def common(parser: argparse.ArgumentParser) -> None:
    """What every command takes."""
    parser.add_argument("-c", "--config", type=Path, default=None, metavar="FILE", help="configuration (TOML)")
    parser.add_argument("--store", default=None, metavar="URL", help="sqlite:///FILE or postgresql://...")
    parser.add_argument("-v", "--verbose", action="store_true", help="verbose logging")


def settings(args: argparse.Namespace) -> Settings:
    """File and environment, then the command line over them."""
    found = load(args.config, os.environ)
    given = {
        name: value for name in ("host", "port", "store", "role") if (value := getattr(args, name, None)) is not None
    }
    if "store" in given:
        given["store"] = Secret(given["store"])
    found = replace(found, **given)
    check_settings(found)
    return found
