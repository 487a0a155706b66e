"""The version of the schema: migrate to it, and check for it."""
