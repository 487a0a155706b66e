"""Collector `miles_rollouts`: see `collector`."""
