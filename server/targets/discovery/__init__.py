"""Target lists that other systems maintain, read again when they change. This package does not scrape.

A reader is a `Provider`: it is queried at every step and returns all targets it has. An unreadable list keeps its
targets and reports the error; a target that a readable list no longer contains is removed.
"""
