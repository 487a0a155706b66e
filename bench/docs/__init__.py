"""The generated pages of the documentation: `python -m bench.docs` writes them, and a test compares them."""
