"""A recorded attempt and the evidence that it gave; `python -m tests.stats.golden` records it anew."""
