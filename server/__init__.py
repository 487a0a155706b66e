"""Layer 2: store, derive, serve."""
