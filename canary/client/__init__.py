"""What a gateway imports: the flags in memory, kept fresh in the background, resolved without waiting for anything.

Standard library and `canary.domain` only; the OpenFeature provider stands apart in `canary.client.openfeature`.
"""

from canary.client.flags import FlagClient as FlagClient
from canary.client.held import Event as Event
from canary.client.held import EventKind as EventKind

__all__ = ["Event", "EventKind", "FlagClient"]
