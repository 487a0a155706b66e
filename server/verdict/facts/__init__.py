"""Measurements of a run at one instant: steps, queue, engines, rollouts in flight. Pure."""
