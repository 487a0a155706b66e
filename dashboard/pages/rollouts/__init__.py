"""The Rollouts page."""
