"""Which actor limits the run, by numbered rules over signals. Pure: no I/O, no clock."""
