"""Reading a training framework's log by a table of keys."""
