"""Copies between the target's device and a drafter's, counted; a drafter beside its target copies nothing.

Whatever a drafter on a device of its own reads from the loop or hands back goes through `to_device`, and nothing past it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from canary.engine.drafters.base import Proposal, Round
from canary.engine.rows import Rows
from canary.engine.transfer import moved

_Value = TypeVar("_Value", Round, Rows)


class Transfers:
    """The way to a drafter's device and back.

    Args:
        target, drafter: their devices.
        apart: count although the devices are equal, to see on one device what two would copy.

    Attributes:
        rounds: proposals.
        copies, bytes: tensors that crossed, and their size.
    """

    def __init__(self, target: torch.device, drafter: torch.device, *, apart: bool = False) -> None:
        self._target, self._drafter = target, drafter
        self._apart = apart or target != drafter
        self.rounds = self.copies = self.bytes = 0

    def to_device(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor on one of the two devices."""
        if self._apart:
            self.copies += 1
            self.bytes += tensor.numel() * tensor.element_size()
        return moved(tensor, device)

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the drafter's device."""
        return self.to_device(tensor, self._drafter)

    def asked(self, asked: Round) -> Round:
        """The loop's question on the drafter's device."""
        self.rounds += 1
        if not self._apart:
            return asked
        return self._moved(replace(asked, rows=None if asked.rows is None else self._moved(asked.rows)))

    def proposed(self, proposal: Proposal) -> Proposal:
        """The drafter's answer on the target's device."""
        if not self._apart:
            return proposal
        probs = None if proposal.probs is None else self.to_device(proposal.probs, self._target)
        return replace(proposal, tokens=self.to_device(proposal.tokens, self._target), probs=probs)

    def per_round(self) -> dict[str, float]:
        """Copies and bytes of a proposal, on average."""
        rounds = max(self.rounds, 1)
        return {"copies": self.copies / rounds, "bytes": self.bytes / rounds}

    def _moved(self, value: _Value) -> _Value:
        tensors = {f.name: v for f in fields(value) if isinstance(v := getattr(value, f.name), torch.Tensor)}
        moved: dict[str, Any] = {name: self.there(tensor) for name, tensor in tensors.items()}
        return replace(value, **moved)
