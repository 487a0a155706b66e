"""The commands of the command line, a module each with `arguments(parser)` and `execute(args)`; see `server.main`."""

OK, FAILED, BAD_USAGE = 0, 1, 2
"""Exit codes: fine, a check failed, bad usage or configuration."""
