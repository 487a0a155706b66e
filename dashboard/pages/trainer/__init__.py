"""The Trainer page."""
