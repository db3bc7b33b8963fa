"""Canary's own engine, made for shadow work: exact, observable, batched. torch is imported here and nowhere else."""
