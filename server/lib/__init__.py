"""What every package of the server may use: time, configuration errors, secrets, label matchers."""
