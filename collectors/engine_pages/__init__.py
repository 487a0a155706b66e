"""Reading a metrics page of an engine or router by a table of names."""
