"""The control plane over HTTP; it never loads torch, and flags are answered from memory even while the store is away."""
