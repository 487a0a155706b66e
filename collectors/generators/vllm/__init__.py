"""Collector `vllm`: see `collector`."""
