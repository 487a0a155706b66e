"""Collector `tunix`: see `collector`."""
