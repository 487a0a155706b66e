"""Reads metrics pages of engines and routers by tables of names."""
