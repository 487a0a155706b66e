"""Collector `verifiers_rollouts`: see `collector`."""
