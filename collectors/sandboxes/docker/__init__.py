"""Collector `docker`: see `collector`."""
