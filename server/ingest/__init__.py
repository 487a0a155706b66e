"""Readings to rows: validation, series ids, incarnations, histograms, sandboxes."""
