"""Collector `trl_completions`: see `collector`."""
