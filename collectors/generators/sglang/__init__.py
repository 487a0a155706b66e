"""Collector `sglang`: see `collector`."""
