"""Pages: static trees of elements. Their texts come from `view.py`, by key."""
