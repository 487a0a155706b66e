"""Prometheus text format to typed series and histograms."""
