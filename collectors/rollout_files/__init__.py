"""Reading rollout records from files that a trainer writes per step."""
