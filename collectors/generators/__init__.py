"""Collectors of inference engines and routers: one module or folder per system, nothing else."""
