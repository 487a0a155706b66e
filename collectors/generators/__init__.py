"""Collectors of inference engines, routers and GPUs: one module or folder per system, nothing else."""
