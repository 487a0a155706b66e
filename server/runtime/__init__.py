"""Processes, roles, the lease on the store, and an orderly stop."""
