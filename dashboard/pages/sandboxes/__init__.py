"""The Sandboxes page."""
