"""The Targets page."""
