"""Collector `openrlhf`: see `collector`."""
