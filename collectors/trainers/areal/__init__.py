"""Collector `areal`: see `collector`."""
