"""Collector `modal`: see `collector`."""
