"""Reading targets on schedule: run loop, reader of one target, duplicate-engine filter."""
