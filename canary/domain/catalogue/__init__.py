"""The fault catalogue: known bugs of real engines that a drill can inject, and harmless controls that must not be called faults.

Plain facts by name; the policy schema, `canary drill --list` and the engine's wrappers all follow from them.
"""

from __future__ import annotations

from canary.domain.catalogue.controls import CONTROLS
from canary.domain.catalogue.engine import CACHE, COUNTS, ECONOMY, ENDS, IDS, STRUCTURE
from canary.domain.catalogue.entry import FaultEntry, Need, Traffic
from canary.domain.catalogue.parameters import PARAMETERS, TOLD
from canary.domain.catalogue.sampler import RANDOM, RULES

__all__ = ["ALL_FAULTS", "CATALOGUE", "FaultEntry", "Need", "Traffic"]

ALL_FAULTS = "all"  # in a policy: every entry that can show with the route's drafter

CATALOGUE: dict[str, FaultEntry] = {
    entry.name: entry
    for entry in (*RULES, *PARAMETERS, *STRUCTURE, *ENDS, *TOLD, *RANDOM, *CACHE, *IDS, *COUNTS, *ECONOMY, *CONTROLS)
}
