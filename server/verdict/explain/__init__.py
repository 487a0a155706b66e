"""The contents of a verdict: limiters with gains, evidence, messages. Pure."""
