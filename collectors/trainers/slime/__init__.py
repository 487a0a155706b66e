"""Collector `slime`: see `collector`."""
