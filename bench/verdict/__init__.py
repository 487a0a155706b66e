"""Accuracy of the verdict: simulated runs through the real signals and rules, compared with counterfactual truth."""
