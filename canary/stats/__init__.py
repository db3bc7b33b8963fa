"""Anytime-valid evidence from stored pairs: numpy and scipy, per-token scalars in, small JSON state out."""
