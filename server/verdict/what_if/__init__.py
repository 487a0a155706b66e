"""Estimates of a changed run, from the throughput model of the verdict."""
