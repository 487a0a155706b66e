"""engine_pages: say here what the package is about."""
