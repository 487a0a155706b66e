"""What a verdict shows: limiters with their gains, evidence, messages. Pure."""
