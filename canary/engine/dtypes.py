"""What `dtype: auto` means for a model on this machine: single precision where a step in it costs little more, else 16 bit.

The answer is measured once and kept beside the models: an epoch must never change because a restart found the machine busy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers

from canary.domain.errors import ModelError
from canary.engine import checkpoints
from canary.engine.forward import PLAIN, RowForward
from canary.engine.probe import verify_costs
from canary.engine.transfer import is_host

AUTO = "auto"
CPU = torch.device("cpu")
AFFORDABLE = 1.5  # times the 16-bit step
_ROWS = 8
_WIDTHS = (1, 5)
_REPEATS = 5

StepMilliseconds = Callable[[Path, str], list[float]]


def resolve_dtype(dtype: str, path: Path, cache_dir: Path, device: torch.device = CPU) -> str:
    """The dtype to load a model in.

    Args:
        dtype: of the policy: `auto`, or the dtype itself, which is returned as it is.
        path: the model's directory.
        cache_dir: where the answer is kept, by machine, device, libraries and weights.
        device: where the model will run.

    Returns:
        `float32` or `bfloat16`; anything else is refused where the model is loaded.

    Raises:
        ModelError: the model cannot be loaded to find out, or what is kept is damaged.
    """
    if dtype != AUTO:
        return dtype
    file = cache_dir / "probes" / f"dtype-{_key(checkpoints.weights_digest(path), device)}.json"
    if not file.is_file():
        _keep(file, measured_ratio(path) if is_host(device) else measured_ratio(path, partial(step_milliseconds, device=device)))
    return _kept(file)


def measured_ratio(path: Path, milliseconds: StepMilliseconds | None = None) -> float:
    """Time of a step in single precision over that of a 16-bit step of transformers' forward, as a geometric mean.

    Args:
        milliseconds: of steps of a few batches and widths, for a directory and dtype.
    """
    measure = milliseconds or step_milliseconds
    single, half = measure(path, "float32"), measure(path, "bfloat16")
    return math.exp(math.fsum(math.log(s / h) for s, h in zip(single, half, strict=True)) / len(half))


def step_milliseconds(path: Path, dtype: str, device: torch.device = CPU) -> list[float]:
    """Median times of target steps: the forward that the engine would use in fp32, transformers' own in 16 bit."""
    model, _ = checkpoints.load(path, dtype, device)
    rows = RowForward(model, _ROWS) if dtype == "float32" else RowForward(model, _ROWS, forward=PLAIN)
    context = max(1, min(128, rows.context - max(_WIDTHS)))
    return [c.milliseconds for c in verify_costs(rows, widths=_WIDTHS, batches=(1, _ROWS), context=context, repeats=_REPEATS)]


def _keep(file: Path, ratio: float) -> None:
    """Write the answer whole or not at all; of two processes that measured at once the first one counts for both."""
    answer = {"dtype": "float32" if ratio <= AFFORDABLE else "bfloat16", "ratio": round(ratio, 3), "affordable": AFFORDABLE}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as made:
        json.dump(answer, made)
    try:
        os.link(made.name, file)
    except FileExistsError:
        pass  # another process was first, and has perhaps acted on its answer already
    finally:
        os.unlink(made.name)


def _kept(file: Path) -> str:
    try:
        dtype = json.loads(file.read_text())["dtype"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file) from error
    if dtype not in checkpoints.DTYPES:
        raise _damaged(file)
    return str(dtype)


def _damaged(file: Path) -> ModelError:
    return ModelError(
        "the kept answer to dtype auto is damaged", where=str(file), remedy="Delete the file; it is measured again."
    )


def _key(weights: str, device: torch.device) -> str:
    name = _processor() if is_host(device) else torch.cuda.get_device_name(device)
    facts = [name, os.cpu_count(), torch.__version__, transformers.__version__, weights]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()


def _processor() -> str:
    """The CPU's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    known = sorted({line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "flags", "Features"))})
    return "; ".join([torch.backends.cpu.get_cpu_capability(), *known])
