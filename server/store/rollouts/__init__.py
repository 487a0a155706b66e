"""Rollouts in the store: tables, fields, writes, reads, pages."""
