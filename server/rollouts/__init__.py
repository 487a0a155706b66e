"""Rules about rollout records, pure: state, staleness, versions, groups, environments, merging."""
