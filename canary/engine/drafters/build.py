"""From a policy's drafter to the object that drafts: a dictionary of builders, and what each adds to the epoch.

Whatever cannot draft for this target is refused here, with the policy's field, before any request runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from canary.domain.drafter_policy import COMPOSITE
from canary.domain.errors import ModelError
from canary.domain.policy import Subject
from canary.engine import checkpoints
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.head_files import heads_digest, load_heads
from canary.engine.drafters.heads import HeadsDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.drafters.transfers import Transfers
from canary.engine.drafters.vocabulary import shared_words
from canary.engine.forward import RowForward
from canary.engine.packed import Packer, in_large_pages
from canary.engine.transfer import find_device


@dataclass(frozen=True, slots=True)
class Setting:
    """What a drafter is built from.

    Args:
        rows: the target's loop; `model` and `tokenizer` are the target as loaded.
        cache_dir: where converted models are kept.
        drawing: how drafts are drawn.
    """

    subject: Subject
    rows: RowForward
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    cache_dir: Path
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class Built:
    """A drafter and what the engine says about it.

    Args:
        facts: what it adds to the epoch, by name.
        weights: modules that it holds beside the target's.
        rows: a loop of its own, for the size of its cache.
        transfers: the way to a device of its own; None beside the target.
    """

    drafter: Drafter
    facts: Mapping[str, str]
    weights: tuple[nn.Module, ...] = ()
    rows: RowForward | None = None
    transfers: Transfers | None = None


def build(setting: Setting) -> Built:
    """The drafter of a subject.

    Raises:
        ModelError: it is unknown, or cannot draft for this target; names the policy's field.
    """
    name = setting.subject.drafter.name
    make = DRAFTERS.get(name)
    if make is None:
        raise ModelError(
            f"drafter {name!r} is unknown", where="subject.drafter.name", remedy=f"Use one of: {', '.join(DRAFTERS)}."
        )
    return make(setting)


def _ngram(setting: Setting) -> Built:
    size = setting.subject.drafter.max_ngram
    if size < 1:
        raise ModelError(f"max_ngram is {size}", where="subject.drafter.max_ngram", remedy="Use at least 1.")
    return Built(NgramDrafter(setting.rows.num_rows, size), {"drafter_max_ngram": str(size)})


def _draft_model(setting: Setting) -> Built:
    asked, num_rows, target = setting.subject.drafter, setting.rows.num_rows, setting.rows.device
    if asked.model is None:
        raise ModelError("a draft_model drafter has no model", where="subject.drafter.model", remedy="Name its directory.")
    path = checkpoints.prepare(asked.model, setting.cache_dir)
    model, tokenizer = checkpoints.load(path, setting.subject.dtype)
    words = shared_words((setting.model, setting.tokenizer), (model, tokenizer))
    device = target if asked.device is None else find_device(asked.device, "subject.drafter.device")
    facts = {"drafter_weights": checkpoints.weights_digest(path)}
    if words is not None:
        facts["drafter_tokenizer"] = checkpoints.tokenizer_digest(path)
    if device.type != target.type:
        # The same draws from rows with other last bits may draft other tokens, and sampled answers hang on what was drafted.
        facts["drafter_device"] = device.type
    transfers = Transfers(target, device) if device != target else None
    model.to(device)  # type: ignore[arg-type]
    drafter = DraftModelDrafter(model, num_rows, setting.drawing, words=words, transfers=transfers)
    return Built(drafter, facts, (drafter.rows.view, *drafter.rows.packed), drafter.rows, transfers)


def _early_exit(setting: Setting) -> Built:
    layer = setting.subject.drafter.exit_layer
    if layer is None:
        raise ModelError(
            "an early_exit drafter has no layer to leave at", where="subject.drafter.exit_layer", remedy="Name a layer."
        )
    return Built(EarlyExitDrafter(setting.rows, layer, setting.drawing), {"drafter_exit_layer": str(layer)})


def _heads(setting: Setting) -> Built:
    asked, rows = setting.subject.drafter, setting.rows
    if asked.heads is None:
        raise ModelError("a heads drafter has no heads", where="subject.drafter.heads", remedy="Name their directory.")
    heads = load_heads(
        asked.heads,
        hidden_size=int(rows.view.config.get_text_config(decoder=True).hidden_size),
        vocab_size=rows.vocab_size,
        num_needed=asked.num_speculative_tokens,
    )
    heads = heads[: asked.num_speculative_tokens].to(rows.device, rows.view.dtype)
    Packer().replace(heads)
    in_large_pages(heads)
    return Built(HeadsDrafter(rows, heads, setting.drawing), {"drafter_heads": heads_digest(asked.heads)}, (heads,))


def _composite(setting: Setting) -> Built:
    asked, rows = setting.subject.drafter, setting.rows
    make = FALLBACKS.get(asked.fallback or "")
    if make is None:
        raise ModelError(
            f"a composite drafter cannot fall back on {asked.fallback!r}",
            where="subject.drafter.fallback",
            remedy=f"Use one of: {', '.join(FALLBACKS)}.",
        )
    copying, asking = _ngram(setting), make(setting)
    drafter = CompositeDrafter(copying.drafter, asking.drafter, rows.num_rows, rows.vocab_size)
    facts = {"drafter_fallback": str(asked.fallback), **copying.facts, **asking.facts}
    return replace(asking, drafter=drafter, facts=facts)


FALLBACKS: Mapping[str, Callable[[Setting], Built]] = {"draft_model": _draft_model, "early_exit": _early_exit, "heads": _heads}
DRAFTERS: Mapping[str, Callable[[Setting], Built]] = {"ngram": _ngram, **FALLBACKS, COMPOSITE: _composite}
