"""The Generator page."""
