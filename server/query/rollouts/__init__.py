"""Rollouts for readers: pages, funnel, timeline, exports."""
