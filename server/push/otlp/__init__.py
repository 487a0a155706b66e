"""OTLP metrics requests."""
