"""Checks before a launch whether the run fits into its accounts: `checks` judges, `probe` reads."""
