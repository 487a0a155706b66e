"""Alerts: rules as data, a pure state machine, and a pipeline whose every decision is in the store."""
