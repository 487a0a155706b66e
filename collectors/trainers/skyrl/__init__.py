"""Collector `skyrl`: see `collector`."""
