"""Collector `prime_rl`: see `collector`."""
