"""Is the verdict right? Simulated runs through the real signals and rules, judged against counterfactual truth."""
