"""Collector `pipeline_rl`: see `collector`."""
