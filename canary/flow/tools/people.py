"""Who an actor is: two names, a name and a key, or two keys may be one person, and nobody agrees to what is their own."""

from __future__ import annotations

import re

from canary.domain.access import NAMELESS, person
from canary.domain.errors import SelfApprovalError
from canary.flow.ports import Transaction

KEY = re.compile(r"(?:cnry[_-])?([0-9a-f]{12})")


def person_of(tx: Transaction, actor: str) -> str:
    """The person behind an actor, as names are compared; a key's id stands for its owner."""
    found = KEY.fullmatch(person(actor))
    key = None if found is None else tx.keys.get(found[1])
    return person(actor if key is None else key.owner)


def refuse_own(tx: Transaction, author: str | None, actor: str, *, what: str, where: str, remedy: str) -> None:
    """Let nobody agree to what is their own.

    Args:
        author: whose it is; None where nobody knows.
        actor: who agrees.
        what: what the author did, as in `proposed this policy`.

    Raises:
        SelfApprovalError: both are one person, or the actor names no person at all.
    """
    who = person_of(tx, actor)
    if who in NAMELESS:
        raise SelfApprovalError(f"{actor} is no person who could agree", where=where, remedy="Say who you are: --actor NAME.")
    if author is not None and person_of(tx, author) == who:
        raise SelfApprovalError(f"{actor} {what}", where=where, remedy=remedy)
