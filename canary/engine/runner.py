"""Canary's own engine behind the shadow port: both arms of a subject on one target, traced and scored, or alone and timed.

Both arms share tokenizer, chat template, target and loop; they differ in the drafter alone (and in a drill's fault, which the
candidate alone has).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import canary
from canary.domain.errors import ModelError
from canary.domain.pairs import Arm, Generation, Timing
from canary.domain.policy import Shadow, Subject
from canary.domain.traffic import Prompt
from canary.engine import checkpoints
from canary.engine.decode import Decoder
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.draft_model import DraftModelDrafter, require_same_words
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.faults import Fault, get_fault
from canary.engine.forward import RowForward
from canary.engine.probe import WidthCost, verify_costs
from canary.engine.requests import Job, Running
from canary.engine.sampling import Draw, draw
from canary.engine.score import score
from canary.engine.streams import key_from_bytes
from canary.engine.verify import verify
from canary.flow.ports import ArmRequest, EngineInfo

# Raised whenever sampling, verification, drafting or chat rendering may give other tokens than before.
PIPELINE_VERSION = 1
PROBE_REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A target and what belongs to it."""

    path: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class _Target:
    """A loaded target, its rows, and what a verification costs on them here and now."""

    loaded: _Loaded
    rows: RowForward
    costs: tuple[WidthCost, ...]


@lru_cache(maxsize=4)
def _target(path: Path, digest: str, dtype: str, num_rows: int) -> _Target:
    """Load a target once per process: routes that share it run one after the other on it.

    Args:
        digest: of the weights, so that replaced files are loaded anew.
    """
    loaded = _Loaded(path, *checkpoints.load(path, dtype))
    rows = RowForward(loaded.model, num_rows)
    return _Target(loaded, rows, verify_costs(rows, repeats=PROBE_REPEATS))


class OwnEngine:
    """Runs a subject's baseline and candidate; see `flow.ports.ShadowEngine`.

    Attributes:
        info: what the engine is; its fingerprint is the epoch's base.
        calibrating: whether traces carry the distances of the alternatives, which calibration needs and later pairs do not.
    """

    def __init__(self, info: EngineInfo, target: _Target, shadow: Shadow, drafter: Drafter, fault: Fault | None) -> None:
        self.info = info
        self.calibrating = True
        self._loaded, self._shadow = target.loaded, shadow
        loaded, rows = target.loaded, target.rows
        ends = checkpoints.eos_ids(loaded.model, loaded.tokenizer)
        judge = verify if fault is None else fault.wrap_verify(verify)
        k = info.num_speculative_tokens
        self._decoders = {
            Arm.BASELINE: Decoder(rows, loaded.tokenizer, ends, clock=perf_counter),
            Arm.CANDIDATE: Decoder(rows, loaded.tokenizer, ends, drafter, k, verifier=judge, clock=perf_counter),
        }

    @classmethod
    def open(
        cls,
        subject: Subject,
        shadow: Shadow,
        cache_dir: Path,
        *,
        threads: int | None = None,
        progress: checkpoints.Progress | None = None,
    ) -> OwnEngine:
        """Load a subject.

        Args:
            cache_dir: where converted models are kept.
            threads: torch threads, None leaves them as they are.
            progress: see `checkpoints.prepare`.

        Raises:
            ModelError: target or draft model cannot be used; names the policy field.
            UsageError: the fault is unknown or cannot show with this drafter.
        """
        if subject.engine != "own":
            raise ModelError(f"engine {subject.engine!r} is unknown", where="subject.engine", remedy="Use own.")
        if subject.drafter.num_speculative_tokens < 1:
            raise ModelError(
                f"num_speculative_tokens is {subject.drafter.num_speculative_tokens}",
                where="subject.drafter.num_speculative_tokens",
                remedy="Ask for at least 1 draft token; the baseline is run anyway.",
            )
        if threads is not None:
            torch.set_num_threads(threads)
        path = checkpoints.prepare(subject.target, cache_dir, progress)
        target = _target(path, checkpoints.weights_digest(path), subject.dtype, shadow.batch_size)
        loaded = target.loaded
        build = DRAFTERS.get(subject.drafter.name)
        if build is None:
            raise ModelError(
                f"drafter {subject.drafter.name!r} is unknown",
                where="subject.drafter.name",
                remedy=f"Use one of: {', '.join(DRAFTERS)}.",
            )
        fault = None if subject.fault is None else get_fault(subject.fault)
        drawing = draw if fault is None else fault.wrap_draw(draw)
        drafter, facts = build(_Setting(subject, loaded, shadow.batch_size, cache_dir, drawing))
        if fault is not None:
            get_fault(fault.name, drafter.kind)
        described = _describe(subject, loaded) | facts
        info = EngineInfo(
            fingerprint=hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest(),
            drafter_kind=drafter.kind,
            num_speculative_tokens=subject.drafter.num_speculative_tokens,
            exact_rows=subject.dtype == "float32",
            vocab_size=target.rows.vocab_size,
            described=described,
            verify_costs={f"{c.batch}x{c.width}": round(c.milliseconds, 3) for c in target.costs},
        )
        return cls(info, target, shadow, drafter, fault)

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> list[Generation]:
        """Run one arm of a batch, traced and scored; a request that cannot run comes back with its `error`."""
        decoder = self._decoders[arm]
        decoder.want_tv = self.calibrating
        jobs = [self._job(i, request) for i, request in enumerate(requests)]
        done: dict[int, Generation] = {}
        for running in decoder.run(jobs, traced=True):
            done[running.job.index] = self._generation(running, arm)
        return [done[i] for i in range(len(requests))]

    def time(self, request: ArmRequest, arm: Arm) -> Timing:
        """Run one arm of one request alone and untraced; tokenisation and prefill are part of its time to first token."""
        start = perf_counter()
        (running,) = self._decoders[arm].run([self._job(0, request)])
        end = perf_counter()
        first = running.first_at if running.first_at is not None else end
        return Timing(first - start, end - start, len(running.token_ids))

    def _job(self, index: int, request: ArmRequest) -> Job:
        params = request.params.clamped(self._shadow.max_tokens)
        try:
            ids, why = encode(self._loaded.tokenizer, request.prompt), None
        except Exception as error:  # a chat template is a program of the model's and may raise anything
            ids, why = (), f"the prompt cannot be rendered: {type(error).__name__}: {error}"
        return Job(index, ids, params, key_from_bytes(request.key), why)

    def _generation(self, running: Running, arm: Arm) -> Generation:
        job, failed = running.job, running.error is not None
        trace = rows = None
        if not failed and running.record is not None:
            kept = running.record
            rows = score(self._loaded.model, job.token_ids, running.token_ids, kept.rows(), job.params, kept.processed_rows())
            trace = running.record.columns() if arm is Arm.CANDIDATE else None
            running.record.clear()
        decoder = self._decoders[arm]
        return Generation(
            arm=arm,
            token_ids=tuple(running.token_ids),
            text=running.text(decoder.words),
            finish_reason=running.finish_reason or "error",
            stats=running.stats(decoder.k),
            error=running.error,
            trace=trace,
            rows=rows,
        )


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """A prompt's tokens, the same for both arms: a chat goes through the model's template, a plain text is taken as it is."""
    if prompt.text is not None:
        return tuple(tokenizer(prompt.text)["input_ids"])
    messages: Any = [{"role": m.role, "content": m.content} for m in prompt.messages]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a drafter is built from."""

    subject: Subject
    target: _Loaded
    num_rows: int
    cache_dir: Path
    draw: Draw


def _ngram(setting: _Setting) -> tuple[Drafter, dict[str, str]]:
    size = setting.subject.drafter.max_ngram
    if size < 1:
        raise ModelError(f"max_ngram is {size}", where="subject.drafter.max_ngram", remedy="Use at least 1.")
    return NgramDrafter(setting.num_rows, size), {"drafter_max_ngram": str(size)}


def _draft_model(setting: _Setting) -> tuple[Drafter, dict[str, str]]:
    name = setting.subject.drafter.model
    if name is None:
        raise ModelError("a draft_model drafter has no model", where="subject.drafter.model", remedy="Name its directory.")
    path = checkpoints.prepare(name, setting.cache_dir)
    model, tokenizer = checkpoints.load(path, setting.subject.dtype)
    require_same_words((setting.target.model, setting.target.tokenizer), (model, tokenizer))
    return DraftModelDrafter(model, setting.num_rows, setting.draw), {"drafter_weights": checkpoints.weights_digest(path)}


DRAFTERS: Mapping[str, Callable[[_Setting], tuple[Drafter, dict[str, str]]]] = {"ngram": _ngram, "draft_model": _draft_model}


def _describe(subject: Subject, loaded: _Loaded) -> dict[str, str]:
    """Everything that could change the outputs, by name."""
    return {
        "engine": f"canary {canary.__version__}",
        "pipeline": str(PIPELINE_VERSION),
        "libraries": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "target": subject.target,
        "target_weights": checkpoints.weights_digest(loaded.path),
        "tokenizer": checkpoints.tokenizer_digest(loaded.path),
        "chat_template": checkpoints.chat_template_digest(loaded.tokenizer),
        "dtype": subject.dtype,
        "drafter": subject.drafter.name,
        "num_speculative_tokens": str(subject.drafter.num_speculative_tokens),
        "fault": subject.fault or "none",
    }
