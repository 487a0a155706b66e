"""Receivers of notifications: one module per kind, nothing else."""
