"""Listing a provider's sandboxes: pages, limits, failures, costs."""
