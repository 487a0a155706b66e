"""Bytes from somewhere, with limits: HTTP, REST, growing files."""
