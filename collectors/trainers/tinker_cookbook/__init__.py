"""Collector `tinker_cookbook`: see `collector`."""
