"""A collector without a store: sender and spool of `rollscope watch --push`."""
