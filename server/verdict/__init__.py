"""Which actor holds the run back, by numbered rules over signals. Pure: no I/O, no clock."""
