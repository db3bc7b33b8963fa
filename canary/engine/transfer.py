"""The loop's own traffic between host and device: through pinned memory to an accelerator and back, plain on a CPU.

What goes to the device never waits for it; what comes back waits once. Which tensors those are is the loop's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from canary.domain.errors import ModelError

CPU = "cpu"


def find_device(name: str, where: str) -> torch.device:
    """A device of this machine.

    Args:
        name: `cpu`, `cuda` or `cuda:N`.
        where: the policy field that names it, for errors.

    Raises:
        ModelError: it has no such name, or this machine has no such device.
    """
    kind, _, number = name.partition(":")
    if not (name == CPU or (kind == "cuda" and name in ("cuda", f"cuda:{number}") and (name == "cuda" or number.isdigit()))):
        raise ModelError(f"device {name!r} is unknown", where=where, remedy="Use cpu, cuda or cuda:N.")
    device, count = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ModelError(
            f"there is no device {name} here, only cpu and {count} GPUs",
            where=where,
            remedy="Name a device that this machine has, or leave the key out.",
        )
    # An indexed one, as tensors on it have: `cuda` and `cuda:0` are not equal.
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def is_host(device: torch.device) -> bool:
    """Whether tensors on a device lie in the host's own memory."""
    return device.type == CPU


def to_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers of the host as a tensor on a device, without waiting for it.

    Args:
        values: nested lists of equal lengths, as `torch.tensor` takes them.
    """
    return moved(torch.tensor(values, dtype=dtype), device)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device; one of the host's goes there without waiting for it."""
    if is_host(device) or not is_host(tensor.device):
        return tensor.to(device)
    # torch gives the pinned memory out anew only when the copy is over, so nothing has to be kept here.
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> list[Any]:
    """A tensor's numbers as nested lists: one copy, and the one wait for the device of a step."""
    if is_host(tensor.device):
        found: list[Any] = tensor.tolist()
        return found
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    buffer.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    copied: list[Any] = buffer.tolist()
    return copied
