"""Collector `harbor_trials`: see `collector`."""
