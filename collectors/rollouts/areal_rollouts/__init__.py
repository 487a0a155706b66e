"""Collector `areal_rollouts`: see `collector`."""
