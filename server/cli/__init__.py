"""The commands of the command line: each module defines one click command, `command`; see `server.main`."""

# Exit codes.
OK = 0
FAILED = 1  # a check failed
BAD_USAGE = 2  # or a bad configuration
