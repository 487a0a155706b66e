"""Where targets come from: lists that others keep, read again as they change. Readers only; nothing here scrapes.

A reader is a `Provider`: asked at every step, it answers with every target it knows now. What cannot be read changes
nothing and is told; what is left out of a list that was read is gone.
"""
