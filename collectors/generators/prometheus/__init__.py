"""Collector `prometheus`: see `collector`."""
