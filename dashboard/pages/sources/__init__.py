"""The Sources page: the targets that are read, and the checks before a launch (Setup)."""
