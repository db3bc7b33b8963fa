"""Canary: evidence for switching speculative decoding on, route by route."""

__version__ = "0.1.0"
