"""The Preflight page."""
