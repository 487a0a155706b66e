"""trackio's project databases."""
