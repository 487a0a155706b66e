"""TOML and environment to settings; every configuration error at once."""
