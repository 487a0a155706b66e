"""The Help page."""
