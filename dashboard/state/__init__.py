"""What a browser shows and what is new since its last request: address, cache, deltas."""
