"""Medusa-style heads on disk, in the published layout: `config.json` beside `medusa_lm_head.safetensors` or `medusa_lm_head.pt`.

Nothing but tensors is ever unpickled, and heads that do not fit the target are refused before they draft.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from canary.domain.errors import ModelError
from canary.engine.drafters.heads import make_heads

CONFIG = "config.json"
WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
FIELD = "subject.drafter.heads"
_GET_AGAIN = "Get the directory again, or name another."
_OTHER_HEADS = "Use heads that were trained for this target."


def load_heads(directory: str | Path, *, hidden_size: int, vocab_size: int, num_needed: int) -> nn.ModuleList:
    """The heads of a directory in evaluation mode, in the dtype of their file.

    Args:
        hidden_size, vocab_size: of the target.
        num_needed: k; the policy may not ask for more drafts than there are heads.

    Raises:
        ModelError: no such directory, a file that cannot be read, or heads for another target; names what differs.
    """
    config, state = _config(Path(directory)), _state(_weights(Path(directory)))
    count, layers = (_number(config, name) for name in ("medusa_num_heads", "medusa_num_layers"))
    for name, ours in (("hidden_size", hidden_size), ("vocab_size", vocab_size)):
        if isinstance(theirs := config.get(name), int) and theirs != ours:
            raise _error(f"the heads' {name} is {theirs}, but the target's is {ours}", _OTHER_HEADS)
    if count < num_needed:
        raise ModelError(
            f"there are {count} heads, but {num_needed} draft tokens are asked for",
            where="subject.drafter.num_speculative_tokens",
            remedy=f"Ask for at most {count}.",
        )
    with torch.device("meta"):  # only shapes until the file has been compared with them
        heads = make_heads(count, layers, hidden_size, vocab_size)
    expected = {name: tuple(tensor.shape) for name, tensor in heads.state_dict().items()}
    _compare(expected, state)
    heads.load_state_dict(state, assign=True)
    return heads.eval().requires_grad_(False)


def heads_digest(directory: str | Path) -> str:
    """Hash of the configuration and the weights."""
    whole = hashlib.blake2b(digest_size=16)
    for file in (Path(directory) / CONFIG, _weights(Path(directory))):
        with file.open("rb") as handle:
            whole.update(file.name.encode() + b"\0" + hashlib.file_digest(handle, "blake2b").digest())
    return whole.hexdigest()


def _config(directory: Path) -> dict[str, Any]:
    try:
        read = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _error(f"{directory / CONFIG} cannot be read: {error}", _GET_AGAIN) from error
    if not isinstance(read, dict):
        raise _error(f"{directory / CONFIG} is not a JSON object", _GET_AGAIN)
    return read


def _number(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _error(f"{CONFIG} says {name}: {value!r}, but a count of at least 1 is needed", _GET_AGAIN)
    return value


def _weights(directory: Path) -> Path:
    found = next((directory / name for name in WEIGHTS if (directory / name).is_file()), None)
    if found is None:
        raise _error(f"{directory} holds neither {' nor '.join(WEIGHTS)}", _GET_AGAIN)
    return found


def _state(file: Path) -> dict[str, torch.Tensor]:
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        raise _error(f"{file} cannot be loaded: {str(error).splitlines()[0]}", _GET_AGAIN) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise _error(f"{file} is not a table of tensors", _GET_AGAIN)
    return state


def _compare(expected: dict[str, tuple[int, ...]], state: dict[str, torch.Tensor]) -> None:
    """Refuse the first name or shape that differs."""
    for name in sorted(expected.keys() | state.keys()):
        if name not in state:
            raise _error(f"the heads lack {name}", _GET_AGAIN)
        if name not in expected:
            raise _error(f"the heads have {name}, which the layout of {CONFIG} does not", _GET_AGAIN)
        shape = tuple(state[name].shape)
        if shape != expected[name]:
            raise _error(f"the heads' {name} is {_said(shape)}, but this target needs {_said(expected[name])}", _OTHER_HEADS)


def _said(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"


def _error(what: str, remedy: str) -> ModelError:
    return ModelError(what, where=FIELD, remedy=remedy)
