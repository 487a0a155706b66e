"""Collector `roll`: see `collector`."""
