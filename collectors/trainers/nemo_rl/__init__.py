"""Collector `nemo_rl`: see `collector`."""
