"""Collects the facts of a route's models for `flow.tools.preflight`, which judges them; nothing is drafted here.

A draft model that cannot be read is a fact too, not an error: the report names it beside everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from canary.domain.errors import ModelError
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.engine import checkpoints
from canary.engine.drafters.vocabulary import shared_words
from canary.engine.dtypes import resolve_dtype
from canary.engine.forward import RowForward
from canary.engine.memory import device_bytes, weight_bytes
from canary.engine.render import renderings
from canary.engine.sweep import Bench
from canary.engine.sweep_tracks import Target
from canary.engine.transfer import find_device
from canary.flow.tools.preflight_facts import SPECIAL, Latency, ModelFacts, RouteFacts, Tokenizer

Progress = Callable[[str, int, int], None]

# Texts on which tokenizers that are not the same give themselves away: case, digits, spaces, accents, composed and other scripts.
PROBES = (
    "Hello, World! It's 12345.678 tests  with   spaces",
    " leading and trailing ",
    "ÀÉÎõü naïve café ﬁne",
    "def f(x):\n\treturn x ** 2 # comment\r\n\n",
    "你好世界 Привет مرحبا 🙂",
    "UPPER lower MiXeD https://example.com/a?b=c&d=1",
)

Loaded = tuple[Path, PreTrainedModel, PreTrainedTokenizerBase, RowForward | None]  # no rows where the engine cannot run it


def collect(
    policy: Policy,
    cache_dir: Path,
    prompts: Sequence[Prompt],
    *,
    memory: float | None = None,
    context: int | None = None,
    threads: int | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> RouteFacts:
    """The facts of a route.

    Args:
        prompts: run one after the other without drafts, for the decode share; none of them is none.
        memory: bytes to plan with; what the device has unless given.
        context: cached tokens of a request at its end; what the prompts and the policy give, else the model's context.
        threads: torch threads, None leaves them as they are.

    Raises:
        ModelError: the policy names no model that is there at all.
    """
    path = checkpoints.prepare(policy.subject.target, cache_dir)
    device = find_device(policy.subject.device, "subject.device")
    subject = replace(policy.subject, dtype=resolve_dtype(policy.subject.dtype, path, cache_dir, device))
    policy = replace(policy, subject=subject)
    if threads is not None:
        torch.set_num_threads(threads)
    progress("target", 0, 3)
    target_facts, target = _read(subject.target, subject.dtype, cache_dir, device)
    progress("draft", 1, 3)
    draft_facts, draft = (None, None)
    if subject.drafter.model is not None:
        draft_facts, draft = _read(subject.drafter.model, subject.dtype, cache_dir)
    share, unmapped = _mapped(target, draft)
    notes: list[str] = []
    latency = None
    if target is not None and prompts and target[3] is not None:
        latency = _latency(policy, target, cache_dir, prompts, progress)
        if latency is None:
            notes.append(f"None of {len(prompts)} prompts could be run, so that nothing is known of the latency.")
    length = context or (min(latency.prompt_tokens + policy.shadow.max_tokens, target_facts.max_positions) if latency else 0)
    return RouteFacts(
        route=policy.route,
        drafter=subject.drafter.name,
        target=target_facts,
        draft=draft_facts,
        memory_bytes=memory or (float(device_bytes(target[1].device)) if target is not None else 0.0),
        sequence_tokens=length or target_facts.max_positions,
        heads_bytes=_heads_bytes(subject.drafter.heads),
        carried_share=share,
        unmapped=unmapped,
        latency=latency,
        notes=tuple(notes),
    )


def _read(name: str, dtype: str, cache_dir: Path, device: torch.device | None = None) -> tuple[ModelFacts, Loaded | None]:
    """One model directory's facts, and the model where it can be loaded."""
    path = checkpoints.prepare(name, cache_dir)
    quantised = _quantised(path)
    if quantised is not None:
        why = f"its weights are quantised with {quantised}, which Canary's own engine does not run"
        return ModelFacts(name, obstacle=why), None
    try:
        model, tokenizer = checkpoints.load(path, dtype, device)
    except ModelError as error:
        return ModelFacts(name, obstacle=error.detail), None
    config = model.config.get_text_config(decoder=True)
    rows = rollback = None
    try:
        rows = RowForward(model, 1, name)
    except ModelError as error:
        rollback = error.detail
    facts = ModelFacts(
        name=name,
        family=str(config.model_type),
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=_tokenizer(tokenizer),
        head_width=int(config.vocab_size),
        embedding_rows=_embedding_rows(model),
        max_positions=int(getattr(config, "max_position_embeddings", 0) or 0),
        positions=_positions(config),
        cache=_cache(config),
        weight_bytes=float(weight_bytes(model, *(() if rows is None else rows.packed))),
        cache_bytes=float(_cache_bytes(config, model.dtype.itemsize)),
        rollback=rollback,
    )
    return facts, (path, model, tokenizer, rows)


def _tokenizer(words: PreTrainedTokenizerBase) -> Tokenizer:
    def pieces(text: str, *, framed: bool) -> tuple[str, ...]:
        ids = words(text, add_special_tokens=framed)["input_ids"]
        return tuple(str(piece) for piece in words.convert_ids_to_tokens(ids))

    return Tokenizer(
        kind=type(words).__name__,
        words=dict(words.get_vocab()),
        added=dict(words.get_added_vocab()),
        special={name: getattr(words, name) for name in SPECIAL},
        pieces=tuple(pieces(text, framed=False) for text in PROBES),
        framed=tuple(pieces(text, framed=True) for text in PROBES),
        template=checkpoints.chat_template_digest(words),
        renderings=renderings(words),
    )


def _mapped(target: Loaded | None, draft: Loaded | None) -> tuple[float | None, str | None]:
    """Share of the words that the drafter maps, or why it maps none; neither where the vocabularies are one."""
    if target is None or draft is None or target[2].get_vocab() == draft[2].get_vocab():
        return None, None
    try:
        words = shared_words(target[1:3], draft[1:3])
    except ModelError as error:
        return None, error.detail
    return (None if words is None else words.share), None


def _latency(policy: Policy, target: Loaded, cache_dir: Path, prompts: Sequence[Prompt], progress: Progress) -> Latency | None:
    path, model, tokenizer, rows = target
    if rows is None:
        return None
    loaded = Target(path, model, tokenizer, rows)
    bench = Bench(policy.subject, loaded, policy.shadow.max_tokens, cache_dir)
    bench.record(prompts[0])  # first calls allocate and compile, which no later request pays
    answers = []
    for at, prompt in enumerate(prompts):
        progress("latency", at, len(prompts))
        answers.append(bench.record(prompt))
    done = [a for a in answers if a is not None]
    if not done:
        return None
    return Latency(
        requests=len(done),
        prefill_seconds=sum(a.prefill_seconds for a in done),
        total_seconds=sum(a.prefill_seconds + a.decode_seconds for a in done),
        num_tokens=sum(len(a.token_ids) for a in done),
        prompt_tokens=max(len(a.prompt_ids) for a in done),
    )


def _embedding_rows(model: PreTrainedModel) -> int:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return int(weight.shape[0])


def _quantised(path: Path) -> str | None:
    """The method of a directory whose weights are quantised."""
    try:
        found = json.loads((path / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    except (OSError, ValueError, AttributeError):
        return None  # `checkpoints.load` says what is wrong with it
    return None if not found else str(found.get("quant_method", "an unnamed method"))


def _positions(config: PretrainedConfig) -> str:
    rope = getattr(config, "rope_parameters", None)
    return f"rotary, {rope.get('rope_type', 'default')}" if isinstance(rope, dict) and rope else "the model's own"


def _cache(config: PretrainedConfig) -> str:
    """The kinds of its layers' caches."""
    try:
        kinds = sorted({type(layer).__name__ for layer in DynamicCache(config=config).layers})
    except (AttributeError, TypeError, ValueError, KeyError):
        return "none that transformers' DynamicCache can hold"
    return ", ".join(kinds) or "DynamicLayer"


def _cache_bytes(config: PretrainedConfig, item: int) -> int:
    """Keys and values of one token."""
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    width = getattr(config, "head_dim", None) or (config.hidden_size // config.num_attention_heads if heads else 0)
    return int(2 * config.num_hidden_layers * heads * width * item)


def _heads_bytes(directory: str | None) -> float:
    """Of the heads' weight files."""
    if directory is None:
        return 0.0
    files = (p for p in Path(directory).glob("medusa_lm_head.*") if p.is_file())
    return float(max((p.stat().st_size for p in files), default=0))
