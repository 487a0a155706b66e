"""Sandbox providers: one file each."""
