"""Layer 3: what we draw. Imports `server.query` and its types, nothing else of ours."""
