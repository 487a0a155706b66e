"""Collectors of training frameworks: one module or folder per framework, nothing else."""
