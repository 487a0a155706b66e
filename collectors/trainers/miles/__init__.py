"""Collector `miles`: see `collector`."""
