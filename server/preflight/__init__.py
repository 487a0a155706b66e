"""Will this run fit what it is about to ask for? Checks before a launch: `checks` judges, `probe` reads."""
