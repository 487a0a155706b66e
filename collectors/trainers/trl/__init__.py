"""Collector `trl`: see `collector`."""
