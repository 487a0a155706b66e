"""Numbered rules in their order: liveness, infrastructure, tuning; and how sure each is. Pure."""
