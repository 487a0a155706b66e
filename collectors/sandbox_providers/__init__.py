"""sandbox_providers: say here what the package is about."""
