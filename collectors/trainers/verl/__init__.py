"""Collector `verl`: see `collector`."""
