"""Rollout records to rows, groups and totals."""
