"""Canary's store in dictionaries: the same ports as `canary.store`, for the gate in CI and for tests.

One file per group of ports, as in `canary.store`. Nothing survives the process.
"""

from canary.inmemory.unit_of_work import InMemoryStore as InMemoryStore
from canary.inmemory.unit_of_work import InMemoryTransaction as InMemoryTransaction

__all__ = ["InMemoryStore", "InMemoryTransaction"]
