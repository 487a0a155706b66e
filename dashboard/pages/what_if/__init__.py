"""The What-if page."""
