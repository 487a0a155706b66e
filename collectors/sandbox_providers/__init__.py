"""Shared parts of the sandbox collectors: listings over several pages, limits, failure causes."""
