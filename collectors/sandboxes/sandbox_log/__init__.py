"""Collector `sandbox_log`: see `collector`."""
