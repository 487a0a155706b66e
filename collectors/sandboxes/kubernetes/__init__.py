"""Collector `kubernetes`: see `collector`."""
