"""Event time: feeds windows, evaluates signals, writes results, recovers after a start."""
