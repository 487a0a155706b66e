"""Layer 2: store, derive, serve."""

__dist__ = "rollscope"
